"""What `make nightly` does beyond `make test`: what takes too long for every change, and what only many nights show.

__main__   the steps, each timed, none hiding another     bench   a short benchmark beside the last good one
unstable   tests that had to run twice, over all runs     state   where that is kept between runs
"""
