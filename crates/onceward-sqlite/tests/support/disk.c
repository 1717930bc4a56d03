/* Stands in for the disk: a library that is loaded before the C library. The gateway's tests use it, too.
 *
 * Syncs fail from the n-th on, where FAIL_SYNCS_FROM names n, and while the file exists that FAIL_SYNCS_WHILE names. They
 * wait while the file exists that STALL_SYNCS_WHILE names; the first one that waits makes a file beside it that ends in
 * ".reached".
 * Writes to files find no space while the file exists that DISK_FULL_WHILE names, and beyond the length that
 * DISK_FULL_BEYOND names. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long syncs;

static int exists(const char *name) {
    const char *flag = getenv(name);
    return flag && access(flag, F_OK) == 0;
}

static int sync_fails(void) {
    const char *from = getenv("FAIL_SYNCS_FROM");
    return (from && atomic_fetch_add(&syncs, 1) + 1 >= atol(from)) || exists("FAIL_SYNCS_WHILE");
}

static void stall(void) {
    char reached[4096];
    const char *flag = getenv("STALL_SYNCS_WHILE");
    if (!flag || access(flag, F_OK) != 0) return;
    snprintf(reached, sizeof reached, "%s.reached", flag);
    close(open(reached, O_CREAT | O_WRONLY, 0600));
    while (access(flag, F_OK) == 0) usleep(1000);
}

static int disk_is_full(int fd, off_t end) {
    struct stat file;
    const char *beyond = getenv("DISK_FULL_BEYOND");
    return (exists("DISK_FULL_WHILE") || (beyond && end > atol(beyond))) && fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
}

#define REFUSE(condition, error) if (condition) { errno = error; return -1; }
#define REAL(type, name) static __typeof__(type) real; if (!real) real = (__typeof__(type))dlsym(RTLD_NEXT, name)

int fsync(int fd) {
    REAL(int (*)(int), "fsync");
    stall();
    REFUSE(sync_fails(), EIO);
    return real(fd);
}

int fdatasync(int fd) {
    REAL(int (*)(int), "fdatasync");
    stall();
    REFUSE(sync_fails(), EIO);
    return real(fd);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(ssize_t (*)(int, const void *, size_t), "write");
    REFUSE(disk_is_full(fd, lseek(fd, 0, SEEK_CUR) + (off_t)count), ENOSPC);
    return real(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    REAL(ssize_t (*)(int, const void *, size_t, off_t), "pwrite");
    REFUSE(disk_is_full(fd, (off_t)(at + count)), ENOSPC);
    return real(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    REAL(ssize_t (*)(int, const void *, size_t, off64_t), "pwrite64");
    REFUSE(disk_is_full(fd, (off_t)(at + count)), ENOSPC);
    return real(fd, bytes, count, at);
}
