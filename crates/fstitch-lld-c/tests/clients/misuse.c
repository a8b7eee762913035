/* Handles, memory and words that are none: each is told, and nothing is followed. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BLOCK = 4096 };

static char block[2 * BLOCK];

/* Every call of a disk, a unit and a volume. */
static void all_fail(lld_disk *disk, lld_unit *unit, lld_volume *volume) {
    uint64_t n;
    struct lld_checked checked;
    struct lld_space space;
    struct lld_info info;
    struct lld_counters counters;
    FAILS(lld_close(disk), EINVAL, "lld_close");
    FAILS(lld_block_size(disk), EINVAL, "lld_block_size");
    FAILS(lld_flush(disk), EINVAL, "lld_flush");
    FAILS(lld_checkpoint(disk), EINVAL, "lld_checkpoint");
    FAILS(lld_clean(disk, 1), EINVAL, "lld_clean");
    FAILS(lld_check(disk, 1, &checked, NULL, 0), EINVAL, "lld_check");
    FAILS(lld_space(disk, &space), EINVAL, "lld_space");
    FAILS(lld_info(disk, &info), EINVAL, "lld_info");
    FAILS(lld_counters(disk, &counters), EINVAL, "lld_counters");
    FAILS(lld_new_list(disk, 0, &n), EINVAL, "lld_new_list");
    FAILS(lld_next_list(disk, 0, &n), EINVAL, "lld_next_list");
    FAILS(lld_read(disk, 1, block, BLOCK), EINVAL, "lld_read");
    FAILS(lld_write(disk, 1, block, BLOCK), EINVAL, "lld_write");
    FAILS(lld_volume_create(disk, "v", BLOCK), EINVAL, "lld_volume_create");
    FAILS(lld_volume_resize(disk, "v", BLOCK), EINVAL, "lld_volume_resize");
    FAILS(lld_volume_remove(disk, "v"), EINVAL, "lld_volume_remove");
    FAILS(lld_volume_list(disk, NULL, 0, &n), EINVAL, "lld_volume_list");
    NOTHING(lld_volume_open(disk, "v"), EINVAL, "lld_volume_open");
    NOTHING(lld_begin(disk), EINVAL, "lld_begin");
    FAILS(lld_unit_new_list(unit, 0, &n), EINVAL, "lld_unit_new_list");
    FAILS(lld_unit_write(unit, 1, block, BLOCK), EINVAL, "lld_unit_write");
    FAILS(lld_end(unit), EINVAL, "lld_end");
    FAILS(lld_end_durable(unit), EINVAL, "lld_end_durable");
    FAILS(lld_abort(unit), EINVAL, "lld_abort");
    FAILS(lld_unit_pwrite(unit, volume, block, 1, 0), EINVAL, "lld_unit_pwrite");
    FAILS(lld_volume_size(volume), EINVAL, "lld_volume_size");
    FAILS(lld_volume_pread(volume, block, 1, 0), EINVAL, "lld_volume_pread");
    FAILS(lld_volume_pwrite(volume, block, 1, 0), EINVAL, "lld_volume_pwrite");
    FAILS(lld_volume_trim(volume, 0, 1), EINVAL, "lld_volume_trim");
    FAILS(lld_volume_flush(volume), EINVAL, "lld_volume_flush");
    FAILS(lld_volume_close(volume), EINVAL, "lld_volume_close");
}

static void memory(lld_disk *disk, lld_volume *volume) {
    uint64_t list, sparse, number, n[2];
    IS(lld_new_list(disk, 0, &list) == 0 && lld_new_list(disk, 1, &sparse) == 0);
    IS(lld_new_block(disk, list, &number) == 0);
    FAILS(lld_new_list(disk, 0, NULL), EINVAL, "lld_new_list");
    FAILS(lld_new_block(disk, list, (uint64_t *)((char *)n + 1)), EINVAL, "lld_new_block");
    FAILS(lld_new_block(disk, list, NULL), EINVAL, "lld_new_block");
    FAILS(lld_list_len(disk, list, NULL), EINVAL, "lld_list_len");
    IS(lld_list_len(disk, list, n) == 0 && n[0] == 1);
    IS(lld_next_list(disk, sparse + 1, n) == 0);
    for (size_t size = 0; size <= 2 * BLOCK; size += BLOCK / 2) {
        if (size != BLOCK) {
            FAILS(lld_read(disk, number, block, size), EINVAL, "lld_read");
            FAILS(lld_write(disk, number, block, size), EINVAL, "lld_write");
            FAILS(lld_read_at(disk, sparse, 9, block, size), EINVAL, "lld_read_at");
            FAILS(lld_write_at(disk, sparse, 9, block, size), EINVAL, "lld_write_at");
        }
    }
    FAILS(lld_read(disk, number, NULL, BLOCK), EINVAL, "lld_read");
    FAILS(lld_write(disk, number, NULL, BLOCK), EINVAL, "lld_write");
    FAILS(lld_write(disk, number, block, SIZE_MAX), EINVAL, "lld_write");
    FAILS(lld_volume_pread(volume, NULL, 1, 0), EINVAL, "lld_volume_pread");
    FAILS(lld_volume_pread(volume, block, SIZE_MAX, 0), EINVAL, "lld_volume_pread");
    IS(lld_volume_pread(volume, NULL, 0, 0) == 0 && lld_volume_pwrite(volume, NULL, 0, 0) == 0);
    FAILS(lld_volume_trim(volume, UINT64_MAX, UINT64_MAX), EINVAL, "lld_volume_trim");
    FAILS(lld_check(disk, 1, NULL, NULL, 0), EINVAL, "lld_check");
    struct lld_checked checked;
    FAILS(lld_check(disk, 1, &checked, NULL, 9), EINVAL, "lld_check");
    FAILS(lld_volume_list(disk, NULL, 3, n), EINVAL, "lld_volume_list");
    FAILS(lld_volume_list(disk, NULL, 0, NULL), EINVAL, "lld_volume_list");
    FAILS(lld_info(disk, NULL), EINVAL, "lld_info");
}

static void words(const char *path, lld_disk *disk) {
    struct lld_format_options format = {0};
    struct lld_open_options options = {0};
    FAILS(lld_format(NULL, NULL), EINVAL, "lld_format");
    format.reserved[3] = 1;
    FAILS(lld_format(path, &format), EINVAL, "lld_format");
    NOTHING(lld_open(NULL, NULL, NULL), EINVAL, "lld_open");
    NOTHING(lld_open("/there/is/no/such/disk", NULL, NULL), ENOENT, "lld_open");
    IS(strstr(lld_error(), "/there/is/no/such/disk") != NULL);
    NOTHING(lld_open("/", NULL, NULL), EOPNOTSUPP, "lld_open");
    options.visibility = 3;
    NOTHING(lld_open(path, &options, NULL), EINVAL, "lld_open");
    FAILS(lld_volume_create(disk, NULL, BLOCK), EINVAL, "lld_volume_create");
    FAILS(lld_volume_create(disk, "", BLOCK), EINVAL, "lld_volume_create");
    FAILS(lld_volume_create(disk, "a/b", BLOCK), EINVAL, "lld_volume_create");
    FAILS(lld_volume_create(disk, "\xff", BLOCK), EINVAL, "lld_volume_create");
    FAILS(lld_volume_create(disk, "x", UINT64_MAX - BLOCK + 1), EINVAL, "lld_volume_create");
    FAILS(lld_volume_resize(disk, "none", BLOCK), ENOENT, "lld_volume_resize");
    IS(strstr(lld_error(), "volume none") != NULL);
}

/* Numbers at the ends of what there is. */
static void ends(lld_disk *disk) {
    const uint64_t most = UINT64_MAX;
    uint64_t n, p;
    const uint64_t odd[] = {0, 999999, most - 1, most};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        FAILS(lld_read(disk, odd[i], block, BLOCK), ENOENT, "lld_read");
        FAILS(lld_delete_block(disk, odd[i]), ENOENT, "lld_delete_block");
        FAILS(lld_delete_list(disk, odd[i]), ENOENT, "lld_delete_list");
        FAILS(lld_block_at(disk, odd[i], 0, &n), ENOENT, "lld_block_at");
        FAILS(lld_next_at(disk, odd[i], most, &p, &n), ENOENT, "lld_next_at");
        FAILS(lld_delete_range(disk, odd[i], 0, most, &n), ENOENT, "lld_delete_range");
        FAILS(lld_new_block(disk, odd[i], &n), ENOENT, "lld_new_block");
    }
    IS(lld_new_list(disk, 1, &p) == 0 && lld_new_block_at(disk, p, most, &n) == 0);
    lld_unit *unit = lld_begin(disk);
    IS(lld_unit_delete_range(unit, p, most, 0, &n) == 0 && n == 0);
    IS(lld_unit_delete_range(unit, p, 0, most, &n) == 0 && n == 1);
    FAILS(lld_unit_read(unit, most, block, BLOCK), ENOENT, "lld_unit_read");
    FAILS(lld_unit_new_block_after(unit, p, most, &n), EINVAL, "lld_unit_new_block_after");
    IS(lld_abort(unit) == 0);
    IS(lld_delete_range(disk, p, most, 0, &n) == 0 && n == 0);
    IS(lld_delete_range(disk, p, 0, most, &n) == 0 && n == 1);
}

int main(int argc, char **argv) {
    static int mine;
    struct lld_format_options format = {0};
    struct lld_open_options options = {0};
    char other_path[4096];
    IS(argc == 2);
    format.size = 16 << 20;
    options.flags = LLD_SEQUENTIAL;
    IS(lld_format(argv[1], &format) == 0);
    snprintf(other_path, sizeof other_path, "%s2", argv[1]);
    IS(lld_format(other_path, &format) == 0);
    lld_disk *disk = lld_open(argv[1], NULL, NULL), *other = lld_open(other_path, &options, NULL);
    IS(disk != NULL && other != NULL && lld_volume_create(disk, "v", BLOCK) == 0);
    lld_volume *volume = lld_volume_open(disk, "v");
    lld_unit *unit = lld_begin(other);
    IS(volume != NULL && unit != NULL);
    FAILS(lld_unit_pwrite(unit, volume, block, 1, 0), EINVAL, "lld_unit_pwrite");
    NOTHING(lld_begin(other), EDEADLK, "lld_begin");
    FAILS(lld_volume_create(other, "v", BLOCK), EDEADLK, "lld_volume_create");

    all_fail(NULL, NULL, NULL);
    all_fail((lld_disk *)&mine, (lld_unit *)&mine, (lld_volume *)&mine);
    all_fail((lld_disk *)unit, (lld_unit *)volume, (lld_volume *)disk);
    pid_t child = fork();
    IS(child >= 0);
    if (child == 0) {
        all_fail(disk, unit, volume);
        _exit(0);
    }
    int status;
    IS(waitpid(child, &status, 0) == child && status == 0);
    memory(disk, volume);
    words(argv[1], disk);
    ends(disk);

    FAILS(lld_close(disk), EBUSY, "lld_close");
    FAILS(lld_close(other), EBUSY, "lld_close");
    IS(lld_volume_close(volume) == 0 && lld_end(unit) == 0 && lld_close(disk) == 0 && lld_close(other) == 0);
    all_fail(disk, unit, volume);
    puts("all told");
    return 0;
}
