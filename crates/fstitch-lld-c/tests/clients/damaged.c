/* Damage is told: of contents, and of the log. The disk at argv[1] is damaged here. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BLOCK = 4096, SIZE = 16 << 20 };

static char bytes[SIZE], one[BLOCK];

static void load(const char *path) {
    FILE *file = fopen(path, "rb");
    IS(file != NULL && fread(bytes, 1, SIZE, file) == SIZE && fclose(file) == 0);
}

static void damage(const char *path, long at) {
    FILE *file = fopen(path, "r+b");
    IS(file != NULL && fseek(file, at, SEEK_SET) == 0 && fputc(bytes[at] ^ 1, file) != EOF && fclose(file) == 0);
}

/* The n-th last place where a block of the file begins so. */
static long find(const char *what, size_t len, int n) {
    for (long at = SIZE - 512; at >= 0; at -= 512) {
        if (memcmp(bytes + at, what, len) == 0 && --n == 0) {
            return at;
        }
    }
    return -1;
}

/* A disk whose program has not closed it: the log has what was made stable one after the other. */
static uint64_t left(const char *path) {
    struct lld_format_options format = {0};
    format.size = SIZE;
    format.flags = LLD_OVERWRITE;
    IS(lld_format(path, &format) == 0);
    pid_t child = fork();
    IS(child >= 0);
    if (child == 0) {
        uint64_t list, block;
        lld_disk *disk = lld_open(path, NULL, NULL);
        IS(disk != NULL && lld_new_list(disk, 0, &list) == 0);
        for (int n = 0; n < 4; n++) {
            memset(one, 'a' + n, BLOCK);
            IS(lld_new_block(disk, list, &block) == 0 && lld_write(disk, block, one, BLOCK) == 0);
            IS(lld_flush(disk) == 0);
        }
        _exit(0);
    }
    int status;
    IS(waitpid(child, &status, 0) == child && status == 0);
    load(path);
    return 1;
}

static void contents(const char *path) {
    uint64_t list = left(path), block;
    memset(one, 'c', BLOCK);
    long at = find(one, BLOCK, 1);
    IS(at > 0);
    damage(path, at + 1000);
    struct lld_recovered recovered;
    lld_disk *disk = lld_open(path, NULL, &recovered);
    IS(disk != NULL && recovered.chunks > 0 && recovered.records > 0 && recovered.damaged[0] == '\0');
    IS(lld_block_at(disk, list, 1, &block) == 1);
    FAILS(lld_read(disk, block, one, BLOCK), EUCLEAN, "lld_read");
    struct lld_checked checked;
    char text[400], little[12];
    memset(little, 'x', sizeof little);
    IS(lld_check(disk, 0, &checked, NULL, 0) == 0 && checked.findings == 0);
    IS(lld_check(disk, 1, &checked, text, sizeof text) == 0 && checked.findings == 1 && checked.corrupt == 1);
    IS(strncmp(text, "[contents] the contents of block ", 33) == 0 && checked.text_size == strlen(text) + 1);
    IS(lld_check(disk, 1, &checked, little, 11) == 0 && strcmp(little, "[contents]") == 0 && little[11] == 'x');
    IS(lld_close(disk) == 0);
}

static void the_log(const char *path) {
    left(path);
    long at = find("LDCH", 4, 2);
    IS(at > 0);
    damage(path, at + 20);
    struct lld_open_options options = {0};
    struct lld_recovered recovered;
    uint64_t len;
    NOTHING(lld_open(path, NULL, &recovered), EUCLEAN, "lld_open");
    options.flags = LLD_READ_ONLY;
    lld_disk *disk = lld_open(path, &options, &recovered);
    IS(disk != NULL && strstr(recovered.damaged, "is damaged") != NULL && lld_list_len(disk, 1, &len) == 0 && len < 4);
    IS(lld_close(disk) == 0);
    options.flags = LLD_ACCEPT_LOSS;
    disk = lld_open(path, &options, &recovered);
    IS(disk != NULL && recovered.damaged[0] != '\0' && lld_close(disk) == 0);
    disk = lld_open(path, NULL, &recovered);
    IS(disk != NULL && recovered.damaged[0] == '\0' && lld_close(disk) == 0);
}

int main(int argc, char **argv) {
    IS(argc == 2);
    contents(argv[1]);
    the_log(argv[1]);
    puts("all found");
    return 0;
}
