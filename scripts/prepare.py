"""`python scripts/prepare.py …`; see the README."""

from headwise.cli import prepare

if __name__ == "__main__":
    prepare()
