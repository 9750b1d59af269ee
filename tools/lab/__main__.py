"""`python -m tools.lab` is `hive-lab`."""

import signal

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job is deaf to it
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while nothing is made, Ctrl-C ends without a word
    from tools.lab.cli import main

    main()
