"""`python scripts/evaluate.py …`; see the README."""

from headwise.cli import evaluate

if __name__ == "__main__":
    evaluate()
