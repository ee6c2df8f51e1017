"""`python scripts/translate.py …`; see the README."""

from headwise.cli import translate

if __name__ == "__main__":
    translate()
