"""`python -m swm_async` is the command `swm-async`."""

from swm_async.cli import main

if __name__ == "__main__":
    main()
