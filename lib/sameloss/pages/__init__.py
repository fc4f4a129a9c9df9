"""What is told: chapters, figures, the ledger of claims, the book."""
