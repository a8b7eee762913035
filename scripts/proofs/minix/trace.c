/* Plays traces of operations and prints what came of each, and trees: `trace play ROOT TRACE`, `trace tree ROOT`. The same program
 * runs on a mount here and, as the first process of a kernel under qemu, on a volume of that kernel's own; what the two print is
 * to be the same. As the first process it loads the modules that /modules names, mounts /dev/vda as Minix for each of /trace.0,
 * /trace.1, …, plays it, prints the tree before and after a remount, and ends the machine.
 *
 * A trace has an operation in each line: words between tabs. Times before 2001 are those that the trace has set; all others are
 * printed as `now`, so that an operation that forgets to set a time, or sets one that it must not, is seen. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define WORDS_MAX 6
#define TRACE_TIMES_END 1000000000
#define AT "/at"

static char buffer[1 << 20];

/* What a call said: its error, or nothing. */
static int failed(long result) {
    return result < 0 ? errno : 0;
}

static void fill(char *at, size_t length, uint64_t seed) {
    uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
    for (size_t i = 0; i < length; i++) {
        state = state * 6364136223846793005 + 1442695040888963407;
        at[i] = (char)(state >> 56);
    }
}

/* A sum of what a file holds in a range; eight bytes a step, the last one filled up with zeros. */
static int sum(int file, off_t from, uint64_t length, uint64_t *out) {
    *out = 1469598103934665603u;
    while (length > 0) {
        size_t want = length < sizeof buffer ? length : sizeof buffer;
        ssize_t got = pread(file, buffer, want, from);
        if (got < 0) return errno;
        if (got == 0) break;
        memset(buffer + got, 0, (8 - got % 8) % 8);
        for (ssize_t i = 0; i < got; i += 8) {
            uint64_t word;
            memcpy(&word, buffer + i, 8);
            *out = (*out ^ word) * 1099511628211u;
            *out ^= *out >> 29;
        }
        *out += (uint64_t)got;
        from += got;
        length -= (uint64_t)got;
    }
    return 0;
}

static int write_all(int file, off_t at, size_t length, uint64_t seed) {
    char *data = malloc(length + 1);
    fill(data, length, seed);
    size_t done = 0;
    int error = 0;
    while (done < length && error == 0) {
        ssize_t got = at < 0 ? write(file, data + done, length - done) : pwrite(file, data + done, length - done, at + (off_t)done);
        error = failed(got);
        done += got > 0 ? (size_t)got : 0;
    }
    free(data);
    return error;
}

/* Opens a file, does `what` with it, closes it. Devices are not opened: they are this machine's, and nobody writes to a pipe. */
static int with_file(const char *path, int flags, mode_t mode, int (*what)(int file, char **word), char **word) {
    struct stat state;
    if (lstat(path, &state) == 0 && !S_ISREG(state.st_mode) && !S_ISDIR(state.st_mode) && !S_ISLNK(state.st_mode))
        return flags & O_EXCL ? EEXIST : ENXIO;
    int file = open(path, flags | O_NOFOLLOW, mode);
    if (file < 0) return errno;
    int error = what ? what(file, word) : 0;
    int closed = failed(close(file));
    return error ? error : closed;
}

static int do_write(int file, char **word) {
    return write_all(file, atoll(word[2]), strtoull(word[3], NULL, 10), strtoull(word[4], NULL, 10));
}

static int do_append(int file, char **word) {
    return write_all(file, -1, strtoull(word[2], NULL, 10), strtoull(word[3], NULL, 10));
}

static int do_read(int file, char **word) {
    uint64_t found;
    int error = sum(file, atoll(word[2]), strtoull(word[3], NULL, 10), &found);
    if (error == 0) printf(" %016" PRIx64, found);
    return error;
}

static int do_sync(int file, char **word) {
    (void)word;
    return failed(fsync(file));
}

/* The last name goes while the file is open: it is written and read as before. */
static int do_orphan(int file, char **word) {
    struct stat state;
    uint64_t found;
    int error = failed(unlink(word[1]));
    if (error == 0) error = write_all(file, 0, strtoull(word[2], NULL, 10), strtoull(word[3], NULL, 10));
    if (error == 0) error = failed(fstat(file, &state));
    if (error == 0) error = sum(file, 0, (uint64_t)state.st_size, &found);
    if (error == 0) printf(" %u %lld %016" PRIx64, (unsigned)state.st_nlink, (long long)state.st_size, found);
    return error;
}

static int do_time(const char *path, long long seconds) {
    struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    return failed(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW));
}

/* Whether a link may be followed in a directory that all may write to is a setting of each kernel: none is. */
static int is_link(const char *path) {
    struct stat state;
    return lstat(path, &state) == 0 && S_ISLNK(state.st_mode);
}

/* A directory that moves to another has another `..`: the kernel's Minix counts that as a change of it, and POSIX does not speak of it.
 * So its time is set by whoever moves it. */
static int do_rename(const char *path, const char *to, unsigned flags) {
    struct stat state;
    int error = failed(syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, to, flags));
    if (error == 0 && lstat(to, &state) == 0 && S_ISDIR(state.st_mode)) return failed(utimensat(AT_FDCWD, to, NULL, 0));
    return error;
}

/* Of a size that the file has already POSIX says that the times change, and the kernel's Minix that they do not: nobody is asked. */
static int do_truncate(const char *path, off_t size) {
    struct stat state;
    if (is_link(path)) return ELOOP;
    if (stat(path, &state) == 0 && S_ISREG(state.st_mode) && state.st_size == size) return 0;
    return failed(truncate(path, size));
}

static int operation(char **word, int count) {
    const char *what = word[0], *path = word[1];
    unsigned long third = count > 2 ? strtoul(word[2], NULL, strncmp(what, "ch", 2) == 0 && what[2] == 'o' ? 10 : 8) : 0;
    if (!strcmp(what, "mkdir")) return failed(mkdir(path, third));
    if (!strcmp(what, "rmdir")) return failed(rmdir(path));
    if (!strcmp(what, "create")) return with_file(path, O_CREAT | O_EXCL | O_WRONLY, third, NULL, word);
    if (!strcmp(what, "mknod")) return failed(mknod(path, third, makedev(atoi(word[3]), atoi(word[4]))));
    if (!strcmp(what, "symlink")) return failed(symlink(word[2], path));
    if (!strcmp(what, "link")) return failed(link(path, word[2]));
    if (!strcmp(what, "unlink")) return failed(unlink(path));
    if (!strcmp(what, "rename")) return do_rename(path, word[2], 0);
    if (!strcmp(what, "rename-new")) return do_rename(path, word[2], 1 /* RENAME_NOREPLACE */);
    if (!strcmp(what, "write")) return with_file(path, O_WRONLY, 0, do_write, word);
    if (!strcmp(what, "append")) return with_file(path, O_WRONLY | O_APPEND, 0, do_append, word);
    if (!strcmp(what, "truncate")) return do_truncate(path, atoll(word[2]));
    if (!strcmp(what, "read")) return with_file(path, O_RDONLY, 0, do_read, word);
    if (!strcmp(what, "fsync")) return with_file(path, O_RDONLY, 0, do_sync, word);
    if (!strcmp(what, "orphan")) return with_file(path, O_RDWR, 0, do_orphan, word);
    if (!strcmp(what, "chmod")) return is_link(path) ? ELOOP : failed(chmod(path, strtoul(word[2], NULL, 8)));
    if (!strcmp(what, "chown")) return failed(lchown(path, third, strtoul(word[3], NULL, 10)));
    if (!strcmp(what, "time")) return do_time(path, atoll(word[2]));
    fprintf(stderr, "trace: no such operation: %s\n", what);
    exit(2);
}

/* Plays a trace in the current directory. */
static void play(const char *trace) {
    FILE *file = fopen(trace, "r");
    if (file == NULL) {
        perror(trace);
        exit(2);
    }
    static char line[8192];
    for (unsigned no = 1; fgets(line, sizeof line, file); no++) {
        char *word[WORDS_MAX] = {0}, *rest = line;
        int count = 0;
        line[strcspn(line, "\n")] = 0;
        while (count < WORDS_MAX && (word[count] = strsep(&rest, "\t"))) count++;
        printf("> %u %s", no, word[0]);
        int error = operation(word, count);
        printf(" %s\n", error ? strerrorname_np(error) : "ok");
    }
    fclose(file);
}

/* Names as plain characters. */
static void name(const char *path) {
    for (; *path; path++) {
        unsigned char byte = (unsigned char)*path;
        printf(byte > ' ' && byte < 127 && byte != '%' ? "%c" : "%%%02x", byte);
    }
}

/* The first name of each file that has several. */
static struct known {
    ino_t ino;
    char *path;
} *known;
static size_t known_count;

static int is_known(const struct stat *state, const char *path) {
    for (size_t i = 0; i < known_count; i++)
        if (known[i].ino == state->st_ino) return printf(" = "), name(known[i].path), 1;
    known = realloc(known, (known_count + 1) * sizeof *known);
    known[known_count++] = (struct known){state->st_ino, strdup(path)};
    return 0;
}

static void contents(const char *path, const struct stat *state) {
    uint64_t found = 0;
    int file = open(path, O_RDONLY);
    int error = file < 0 ? errno : sum(file, 0, (uint64_t)state->st_size + 1, &found);
    printf(" %lld %016" PRIx64 "%s", (long long)state->st_size, found, error ? strerrorname_np(error) : "");
    close(file);
}

static int visible(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
}

static int by_bytes(const struct dirent **one, const struct dirent **other) {
    return strcmp((*one)->d_name, (*other)->d_name);
}

/* Prints what is at a path, and all below it. */
static void tree(const char *path) {
    struct stat state;
    printf("> ");
    name(path);
    if (lstat(path, &state) < 0) {
        printf(" %s\n", strerrorname_np(errno));
        return;
    }
    printf(" %o %u %u:%u", state.st_mode, (unsigned)state.st_nlink, state.st_uid, state.st_gid);
    state.st_mtime < TRACE_TIMES_END ? printf(" %lld", (long long)state.st_mtime) : printf(" now");
    int again = !S_ISDIR(state.st_mode) && state.st_nlink > 1 && is_known(&state, path);
    if (!again && S_ISREG(state.st_mode)) contents(path, &state);
    if (S_ISCHR(state.st_mode) || S_ISBLK(state.st_mode)) printf(" %u:%u", major(state.st_rdev), minor(state.st_rdev));
    if (S_ISLNK(state.st_mode)) {
        char target[4096];
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        printf(" %lld ", (long long)state.st_size);
        name(target);
    }
    printf("\n");
    if (!S_ISDIR(state.st_mode)) return;
    struct dirent **entry;
    int count = scandir(path, &entry, visible, by_bytes);
    if (count < 0) printf("> %s\n", strerrorname_np(errno));
    for (int i = 0; i < count; i++) {
        char below[8192];
        snprintf(below, sizeof below, "%s/%s", path, entry[i]->d_name);
        tree(below);
        free(entry[i]);
    }
    if (count >= 0) free(entry);
}

static void whole_tree(const char *label) {
    printf("> %s\n", label);
    known_count = 0;
    tree(".");
}

static void must(int result, const char *what) {
    if (result >= 0) return;
    printf("trace: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    reboot(RB_AUTOBOOT);
}

static void attach(void) {
    must(mount("/dev/vda", AT, "minix", MS_NOATIME, NULL), "mounting /dev/vda");
    must(chdir(AT), AT);
}

static void detach(void) {
    must(chdir("/"), "/");
    must(umount(AT), "unmounting");
}

static void load_modules(void) {
    char path[4096];
    FILE *list = fopen("/modules", "r");
    while (list && fgets(path, sizeof path, list)) {
        path[strcspn(path, "\n")] = 0;
        int module = open(path, O_RDONLY | O_CLOEXEC);
        must(module, path);
        must((int)syscall(SYS_finit_module, module, "", 0), path);
        close(module);
    }
}

static void machine(void) {
    must(mount("none", "/dev", "devtmpfs", 0, NULL), "/dev");
    must(open("/dev/console", O_RDONLY), "/dev/console");
    must(dup2(open("/dev/console", O_WRONLY), 1), "/dev/console");
    dup2(1, 2);
    umask(0);
    load_modules();
    for (unsigned part = 0; part < 1000; part++) {
        char path[32];
        snprintf(path, sizeof path, "/trace.%u", part);
        if (access(path, R_OK) < 0) break;
        /* The BIOS has left something on the line. */
        printf("\n> part %u\n", part);
        attach();
        play(path);
        whole_tree("tree");
        detach();
        attach();
        whole_tree("tree again");
        detach();
    }
    printf("> end\n");
    fflush(stdout);
    sync();
    reboot(RB_AUTOBOOT);
}

int main(int count, char **word) {
    if (getpid() == 1) machine();
    umask(0);
    if (count < 3 || chdir(word[2]) < 0 || (!strcmp(word[1], "play") && count < 4)) {
        fprintf(stderr, "usage: trace play ROOT TRACE | trace tree ROOT LABEL\n");
        return 2;
    }
    if (!strcmp(word[1], "play"))
        play(word[3]);
    else
        whole_tree(count > 3 ? word[3] : "tree");
    return 0;
}
