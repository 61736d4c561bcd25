/* Preloaded into a process, this records what the process does to the files below a directory, and
 * lets some of its writes and syncs fail, hang or take long.
 *
 * $DISK_SHIM_ROOT    the directory, without symbolic links
 * $DISK_SHIM_RECORD  the record, to which each process appends; none: nothing is recorded
 * $DISK_SHIM_FAULTS  the table of faults, which the test writes (struct fault, below)
 *
 * A call and its entry in the record happen under one lock of all threads and processes. So the
 * record has the order in which the file system has seen the calls. Only a sync is outside of the
 * lock, because it takes long: it has one entry when it begins and one when it ends. A sync covers
 * what came before its beginning, and promises that from its end on.
 *
 * A sync that fails also fails once through each other descriptor of the file that was open then, as
 * on Linux (fsync(2)). A descriptor that is opened later learns nothing of it.
 *
 * What is written through a mapping (SQLite's -shm) is not recorded, and neither are links,
 * copy_file_range and pwritev. The test compares the outcome with the real files.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The same layout is in shim.py. */
enum { FAULTS = 64, SYNCS = 1, WRITES = 2, LIES = -1, FAILURES = 4096 };
struct fault {
    char name_ends_with[64];
    atomic_int calls;     /* SYNCS or WRITES */
    atomic_int remaining; /* the number of calls that it still meets; below zero: all */
    atomic_int error;     /* the errno of these calls; 0: they succeed; LIES: a sync does nothing */
    atomic_int delay;     /* milliseconds */
    atomic_int hangs;     /* the calls wait until this is 0 */
    atomic_int met;       /* the number of calls that it has met */
    int unused[10];
};

/* The failed syncs of the files whose inodes have the same remainder. */
struct failures {
    atomic_int count;
    atomic_int error; /* the errno of the last one */
};

struct __attribute__((packed)) entry {
    char kind;
    int32_t process, thread;
    uint64_t inode;
    int64_t at; /* the offset of a write; the size of a file; the errno of a sync that has ended */
    uint32_t name_length, data_length;
};

#define REAL(name)                                                \
    static __typeof__(name) *real;                                \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static const char *root;
static int record = -1;
static struct fault *faults;
static struct failures *failures; /* behind the faults */
static int reported[1 << 16];     /* by descriptor: the failed syncs that it has reported */
static pthread_mutex_t inside = PTHREAD_MUTEX_INITIALIZER;

static void lock(int kind) {
    struct flock whole = {.l_type = kind, .l_whence = SEEK_SET};
    while (fcntl(record, F_SETLKW, &whole) && errno == EINTR) {}
}
static void enter(void) {
    pthread_mutex_lock(&inside);
    if (record >= 0) lock(F_WRLCK);
}
static void leave(void) {
    if (record >= 0) lock(F_UNLCK);
    pthread_mutex_unlock(&inside);
}
/* The child must not inherit a mutex that another thread holds. Locks of files are not inherited. */
static void before_fork(void) { pthread_mutex_lock(&inside); }
static void after_fork(void) { pthread_mutex_unlock(&inside); }

static int open_or_abort(const char *path, int flags) {
    int descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600);
    if (descriptor < 0) {
        perror(path);
        abort();
    }
    return descriptor;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISK_SHIM_RECORD");
    root = getenv("DISK_SHIM_ROOT");
    if (!root) return;
    if (path) record = open_or_abort(path, O_WRONLY | O_APPEND | O_CREAT);
    if ((path = getenv("DISK_SHIM_FAULTS"))) {
        int file = open_or_abort(path, O_RDWR);
        size_t size = FAULTS * sizeof(struct fault) + FAILURES * sizeof(struct failures);
        faults = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (faults == MAP_FAILED) abort();
        failures = (struct failures *)(faults + FAULTS);
    }
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* The name of a path below the root, "." for the root itself, or NULL. */
static const char *below(const char *path) {
    size_t length = root ? strlen(root) : 0;
    if (!length || strncmp(path, root, length)) return NULL;
    if (!path[length]) return ".";
    return path[length] == '/' ? path + length + 1 : NULL;
}

static const char *name_of(int descriptor, char *buffer) {
    static const char deleted[] = " (deleted)";
    char link[40];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = root ? readlink(link, buffer, PATH_MAX - 1) : -1;
    errno = saved;
    if (length < 0) return NULL;
    buffer[length] = 0;
    char *end = buffer + length - (sizeof deleted - 1);
    if (end > buffer && !strcmp(end, deleted)) *end = 0;
    return below(buffer);
}

static const char *name_at(int directory, const char *path, char *buffer) {
    if (!root || path[0] == '/') return below(path);
    if (directory == AT_FDCWD) {
        if (!getcwd(buffer, PATH_MAX)) return NULL;
    } else {
        char link[40];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, buffer, PATH_MAX - 1);
        if (length < 0) return NULL;
        buffer[length] = 0;
    }
    size_t length = strlen(buffer);
    snprintf(buffer + length, PATH_MAX - length, "/%s", path);
    return below(buffer);
}

static uint64_t inode_of(int descriptor) {
    struct stat found;
    return fstat(descriptor, &found) ? 0 : found.st_ino;
}

static uint64_t inode_at(int directory, const char *path) {
    struct stat found;
    return fstatat(directory, path, &found, AT_SYMLINK_NOFOLLOW) ? 0 : found.st_ino;
}

/* Append an entry. The caller is inside. */
static void note(char kind, uint64_t inode, int64_t at, const char *name, const void *data,
                 size_t length) {
    int saved = errno;
    struct entry entry = {kind, getpid(), (int)syscall(SYS_gettid), inode, at,
                          (uint32_t)strlen(name), (uint32_t)length};
    struct iovec parts[] = {
        {&entry, sizeof entry}, {(void *)name, strlen(name)}, {(void *)data, length}};
    if (record < 0) return;
    ssize_t size = (ssize_t)(sizeof entry + strlen(name) + length);
    if (syscall(SYS_writev, record, parts, 3) != size) abort();
    errno = saved;
}

/* Meet the faults of a call; return the error that it must have, LIES, or 0. */
static int meet(int calls, const char *name) {
    int error = 0;
    for (struct fault *each = faults; faults && each < faults + FAULTS; each++) {
        size_t length = strlen(name), suffix = strlen(each->name_ends_with);
        if (each->calls != calls || suffix > length ||
            strcmp(name + length - suffix, each->name_ends_with))
            continue;
        int left = each->remaining;
        while (left > 0 && !atomic_compare_exchange_weak(&each->remaining, &left, left - 1)) {}
        if (!left) continue;
        each->met++;
        if (each->delay) usleep((useconds_t)each->delay * 1000);
        while (each->hangs) usleep(500);
        if (each->error) error = each->error;
    }
    return error;
}

static int must_fail(int calls, const char *name) {
    int error = meet(calls, name);
    if (error > 0) errno = error;
    return error > 0;
}

/* Syncs */

static int is_known(int file) {
    return failures && file < (int)(sizeof reported / sizeof *reported);
}

/* Let a new descriptor report what fails from now on. */
static void opened(int file) {
    if (is_known(file)) reported[file] = failures[inode_of(file) % FAILURES].count;
}

/* Return the errno of a sync that has ended, with its own errno or 0: that of a sync that failed
 * before, or meanwhile, if this descriptor has not reported it. The caller is inside. */
static int report(int file, int error) {
    if (!is_known(file)) return error;
    struct failures *of = &failures[inode_of(file) % FAILURES];
    if (error > 0) {
        of->error = error;
        of->count++;
    } else if (!error && reported[file] != of->count) {
        error = of->error;
    }
    reported[file] = of->count;
    return error;
}

static int sync_file(int file, int (*real)(int)) {
    char buffer[PATH_MAX];
    const char *name = name_of(file, buffer);
    if (!name) return real(file);
    uint64_t inode = inode_of(file);
    enter();
    note('B', inode, 0, name, NULL, 0);
    leave();
    int error = meet(SYNCS, name);
    if (!error && real(file)) error = errno;
    enter();
    error = report(file, error);
    note('E', inode, error, name, NULL, 0);
    leave();
    if (error <= 0) return 0; /* also if it lies */
    errno = error;
    return -1;
}

int fsync(int file) {
    REAL(fsync);
    return sync_file(file, real);
}
int fdatasync(int file) {
    REAL(fdatasync);
    return sync_file(file, real);
}

/* Writes */

#define RECORDED_WRITE(call, before)                                           \
    char buffer[PATH_MAX];                                                     \
    const char *name = name_of(file, buffer);                                  \
    if (!name) return call;                                                    \
    if (must_fail(WRITES, name)) return -1;                                    \
    enter();                                                                   \
    ssize_t done = call;                                                       \
    if (done > 0) note('W', inode_of(file), before, name, data, (size_t)done); \
    leave();                                                                   \
    return done

ssize_t write(int file, const void *data, size_t size) {
    REAL(write);
    RECORDED_WRITE(real(file, data, size), lseek(file, 0, SEEK_CUR) - done);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    RECORDED_WRITE(real(file, data, size, at), at);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    RECORDED_WRITE(real(file, data, size, at), at);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    char buffer[PATH_MAX];
    if (!name_of(file, buffer)) return real(file, parts, count);
    ssize_t total = 0; /* part by part, not at once: nobody here depends on that */
    for (int part = 0; part < count; part++) {
        ssize_t done = write(file, parts[part].iov_base, parts[part].iov_len);
        if (done < 0) return total ? total : -1;
        total += done;
        if ((size_t)done < parts[part].iov_len) break;
    }
    return total;
}

/* Refused, so that a program that copies a file writes it instead. */
ssize_t sendfile(int file, int from, off_t *at, size_t size) {
    REAL(sendfile);
    char buffer[PATH_MAX];
    if (!name_of(file, buffer)) return real(file, from, at, size);
    errno = ENOTSOCK;
    return -1;
}
ssize_t sendfile64(int file, int from, off64_t *at, size_t size) {
    REAL(sendfile64);
    char buffer[PATH_MAX];
    if (!name_of(file, buffer)) return real(file, from, at, size);
    errno = ENOTSOCK;
    return -1;
}

/* Sizes */

static int resize(int file, off64_t size, int (*real)(int, off64_t)) {
    char buffer[PATH_MAX];
    const char *name = name_of(file, buffer);
    if (!name) return real(file, size);
    enter();
    int result = real(file, size);
    if (!result) note('T', inode_of(file), size, name, NULL, 0);
    leave();
    return result;
}
int ftruncate(int file, off_t size) {
    REAL(ftruncate);
    return resize(file, size, real);
}
int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64);
    return resize(file, size, real);
}

static int reserve(int file, off64_t at, off64_t size, int (*real)(int, off64_t, off64_t)) {
    char buffer[PATH_MAX];
    const char *name = name_of(file, buffer);
    if (!name) return real(file, at, size);
    if (must_fail(WRITES, name)) return errno;
    enter();
    int error = real(file, at, size);
    if (!error) note('A', inode_of(file), at + size, name, NULL, 0);
    leave();
    return error;
}
int posix_fallocate(int file, off_t at, off_t size) {
    REAL(posix_fallocate);
    return reserve(file, at, size, real);
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
    REAL(posix_fallocate64);
    return reserve(file, at, size, real);
}

/* Names */

static int open_file(int directory, const char *path, int flags, int mode) {
    char buffer[PATH_MAX];
    const char *name =
        (flags & O_TMPFILE) == O_TMPFILE ? NULL : name_at(directory, path, buffer);
    if (!name) return (int)syscall(SYS_openat, directory, path, flags, mode);
    enter();
    int is_there = inode_at(directory, path) != 0;
    int file = (int)syscall(SYS_openat, directory, path, flags, mode);
    if (file >= 0) opened(file);
    if (file >= 0 && !is_there) note('C', inode_of(file), 0, name, NULL, 0);
    if (file >= 0 && is_there && flags & O_TRUNC) note('T', inode_of(file), 0, name, NULL, 0);
    leave();
    return file;
}

#define MODE                                                   \
    int mode = 0;                                              \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                          \
        va_start(rest, flags);                                 \
        mode = va_arg(rest, int);                              \
        va_end(rest);                                          \
    }

int open(const char *path, int flags, ...) {
    MODE
    return open_file(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE
    return open_file(AT_FDCWD, path, flags, mode);
}
int openat(int directory, const char *path, int flags, ...) {
    MODE
    return open_file(directory, path, flags, mode);
}
int openat64(int directory, const char *path, int flags, ...) {
    MODE
    return open_file(directory, path, flags, mode);
}

int renameat(int from, const char *old, int to, const char *new) {
    REAL(renameat);
    char buffers[2][PATH_MAX];
    const char *name = name_at(from, old, buffers[0]), *renamed = name_at(to, new, buffers[1]);
    if (!name || !renamed) return real(from, old, to, new);
    enter();
    int result = real(from, old, to, new);
    if (!result) note('R', inode_at(to, new), 0, name, renamed, strlen(renamed));
    leave();
    return result;
}
int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat);
    char buffer[PATH_MAX];
    const char *name = name_at(directory, path, buffer);
    if (!name) return real(directory, path, flags);
    enter();
    uint64_t inode = inode_at(directory, path);
    int result = real(directory, path, flags);
    if (!result) note('U', inode, 0, name, NULL, 0);
    leave();
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int directory, const char *path, mode_t mode) {
    REAL(mkdirat);
    char buffer[PATH_MAX];
    const char *name = name_at(directory, path, buffer);
    if (!name) return real(directory, path, mode);
    enter();
    int result = real(directory, path, mode);
    if (!result) note('D', inode_at(directory, path), 0, name, NULL, 0);
    leave();
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Called by the recorded program: what it knows at this point of the order. */
void disk_mark(const void *data, size_t length) {
    enter();
    note('M', 0, 0, "", data, length);
    leave();
}
