/* A wall clock of its own for the program that loads this before libc (LD_PRELOAD), and for its children.
 *
 * HIVE_WALL_CLOCK names a file with one number of eight bytes: by how many seconds that clock is ahead of the machine's,
 * now; it may change at any time. Clocks that nobody can set are answered as ever. The kernel's own use of the wall
 * clock (times of files) is not reached.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_s;
static int (*libc_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_clock(void)
{
    const char *path = getenv("HIVE_WALL_CLOCK");
    int file = open(path ? path : "", O_RDONLY | O_CLOEXEC);
    void *page = mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) {
        perror("wall_clock: HIVE_WALL_CLOCK");
        _exit(127);
    }
    close(file);
    libc_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    ahead_s = page;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int code = libc_clock_gettime ? libc_clock_gettime(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (!code && ahead_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead_s;
    return code;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec precise;
    (void)zone; /* obsolete: glibc gives zeros or nothing */
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *also)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (also)
        *also = precise.tv_sec;
    return precise.tv_sec;
}
