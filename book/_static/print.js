// Paper is light: a page that is read in the dark is printed in the light colours, and goes back to its own afterwards.
(() => {
  let theme;
  window.addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    if (theme) document.documentElement.dataset.theme = theme;
  });
})();
