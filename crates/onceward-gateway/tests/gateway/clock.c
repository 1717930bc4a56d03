/* Stands in for the machine's clocks: a library that is loaded before the C library.
 *
 * The file that CLOCKS_AHEAD_BY names holds two numbers: by how many seconds the wall clock is ahead, and by how many
 * elapsed time is. Both together are time that has passed; the first alone is a clock that was set. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    const char *path = getenv("CLOCKS_AHEAD_BY");
    if (result != 0 || !path || (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC)) return result;
    int before = errno;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        char text[64] = {0};
        if (read(file, text, sizeof text - 1) > 0) {
            char *rest;
            long wall = strtol(text, &rest, 10);
            long elapsed = strtol(rest, 0, 10);
            now->tv_sec += clock == CLOCK_REALTIME ? wall : elapsed;
        }
        close(file);
    }
    errno = before;
    return result;
}
