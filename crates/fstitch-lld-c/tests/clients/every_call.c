/* Every call once, as it should be used, on the disk at argv[1]; then everything again after it was opened anew. */
#include "check.h"

enum { BLOCK = 4096 };

static unsigned char one[BLOCK], two[BLOCK], got[BLOCK], zeros[BLOCK];

/* What is to be found when the disk is opened again. */
static uint64_t kept, first, second, sparse, last_block;

static int same(const void *a, const void *b) { return memcmp(a, b, BLOCK) == 0; }

static lld_disk *made(const char *path) {
    struct lld_format_options options = {0};
    options.size = 32 << 20;
    options.segment_size = 64 << 10;
    options.uuid[0] = 7;
    IS(lld_format(path, &options) == 0);
    FAILS(lld_format(path, &options), EEXIST, "lld_format");
    options.flags = LLD_OVERWRITE;
    IS(lld_format(path, &options) == 0);

    struct lld_open_options opening = {0};
    opening.cache_size = 1 << 20;
    opening.checkpoint_interval = 1 << 20;
    struct lld_recovered recovered;
    memset(&recovered, 0xff, sizeof recovered);
    lld_disk *disk = lld_open(path, &opening, &recovered);
    IS(disk != NULL);
    IS(recovered.chunks == 0 && recovered.records == 0 && recovered.unfinished == 0 && recovered.torn == 0);
    IS(recovered.damaged[0] == '\0');
    IS(lld_block_size(disk) == BLOCK);
    NOTHING(lld_open(path, NULL, NULL), EBUSY, "lld_open");
    return disk;
}

static void lists(lld_disk *disk) {
    uint64_t number, third, gone, len, removed, position;
    IS(lld_new_list(disk, 0, &kept) == 0 && lld_new_list(disk, 1, &sparse) == 0);
    IS(lld_new_list(disk, 0, &gone) == 0 && lld_delete_list(disk, gone) == 0);
    FAILS(lld_list_len(disk, gone, &len), ENOENT, "lld_list_len");
    IS(lld_next_list(disk, kept, &number) == 1 && number == kept);
    IS(lld_next_list(disk, sparse + 1, &number) == 0 && number == kept);

    IS(lld_new_block(disk, kept, &second) == 0 && lld_new_block(disk, kept, &first) == 0);
    IS(lld_new_block_after(disk, kept, second, &third) == 0);
    IS(lld_list_len(disk, kept, &len) == 0 && len == 3);
    IS(lld_block_at(disk, kept, 0, &number) == 1 && number == first);
    IS(lld_block_at(disk, kept, 2, &number) == 1 && number == third);
    IS(lld_block_at(disk, kept, 3, &number) == 0);
    IS(lld_block_after(disk, kept, first, &number) == 1 && number == second);
    IS(lld_block_after(disk, kept, third, &number) == 0);
    IS(lld_block_before(disk, kept, second, &number) == 1 && number == first);
    IS(lld_block_before(disk, kept, first, &number) == 0);
    IS(lld_delete_block(disk, third) == 0 && lld_list_len(disk, kept, &len) == 0 && len == 2);

    IS(lld_read(disk, first, got, BLOCK) == 0 && same(got, zeros));
    IS(lld_write(disk, first, one, BLOCK) == 0 && lld_write(disk, second, two, BLOCK) == 0);
    IS(lld_read(disk, first, got, BLOCK) == 0 && same(got, one));

    IS(lld_new_block_at(disk, sparse, 5, &number) == 0);
    FAILS(lld_new_block_at(disk, sparse, 5, &number), EEXIST, "lld_new_block_at");
    FAILS(lld_new_block(disk, sparse, &number), EINVAL, "lld_new_block");
    IS(lld_write_at(disk, sparse, 9, one, BLOCK) == 0 && lld_write_at(disk, sparse, UINT64_MAX, two, BLOCK) == 0);
    IS(lld_read_at(disk, sparse, 9, got, BLOCK) == 0 && same(got, one));
    IS(lld_read_at(disk, sparse, 10, got, BLOCK) == 0 && same(got, zeros));
    IS(lld_next_at(disk, sparse, 6, &position, &number) == 1 && position == 9 && number > first);
    IS(lld_next_at(disk, sparse, 10, &position, NULL) == 1 && position == UINT64_MAX);
    IS(lld_delete_range(disk, sparse, 0, 8, &removed) == 0 && removed == 1);
    IS(lld_delete_range(disk, sparse, 10, UINT64_MAX, NULL) == 0);
    IS(lld_next_at(disk, sparse, 10, &position, &number) == 0);
}

/* What a unit has done is its own until it ends, and nobody's if it is aborted. */
static void units(lld_disk *disk) {
    uint64_t list, other, number, block, len, position, removed;
    lld_unit *unit = lld_begin(disk);
    IS(unit != NULL);
    IS(lld_unit_new_list(unit, 0, &list) == 0 && lld_unit_new_list(unit, 1, &other) == 0);
    IS(lld_unit_new_block(unit, list, &block) == 0 && lld_unit_new_block_after(unit, list, block, &number) == 0);
    IS(lld_unit_list_len(unit, list, &len) == 0 && len == 2);
    IS(lld_unit_block_at(unit, list, 1, &removed) == 1 && removed == number);
    IS(lld_unit_block_after(unit, list, block, &removed) == 1 && removed == number);
    IS(lld_unit_block_before(unit, list, block, &removed) == 0);
    IS(lld_unit_delete_block(unit, number) == 0 && lld_unit_delete_list(unit, list) == 0);
    IS(lld_unit_new_block_at(unit, other, 3, &number) == 0 && lld_unit_write_at(unit, other, 4, one, BLOCK) == 0);
    IS(lld_unit_read_at(unit, other, 4, got, BLOCK) == 0 && same(got, one));
    IS(lld_unit_next_at(unit, other, 0, &position, &block) == 1 && position == 3 && block == number);
    IS(lld_unit_delete_range(unit, other, 0, 3, &removed) == 0 && removed == 1);
    IS(lld_unit_write(unit, first, two, BLOCK) == 0 && lld_unit_read(unit, first, got, BLOCK) == 0 && same(got, two));
    IS(lld_read(disk, first, got, BLOCK) == 0 && same(got, one));
    FAILS(lld_list_len(disk, other, &len), ENOENT, "lld_list_len");
    struct lld_info info;
    IS(lld_info(disk, &info) == 0 && info.open_units == 1);
    FAILS(lld_close(disk), EBUSY, "lld_close");
    IS(lld_abort(unit) == 0);
    IS(lld_read(disk, first, got, BLOCK) == 0 && same(got, one));

    unit = lld_begin(disk);
    IS(lld_unit_write(unit, first, two, BLOCK) == 0 && lld_unit_new_block_after(unit, kept, second, &last_block) == 0);
    IS(lld_unit_write(unit, last_block, one, BLOCK) == 0 && lld_end(unit) == 0);
    IS(lld_read(disk, first, got, BLOCK) == 0 && same(got, two));
    IS(lld_read(disk, last_block, got, BLOCK) == 0 && same(got, one));

    /* Somebody removes what a unit builds on. */
    unit = lld_begin(disk);
    IS(lld_new_block(disk, kept, &block) == 0 && lld_unit_new_block_after(unit, kept, second, &number) == 0);
    IS(lld_unit_write(unit, first, one, BLOCK) == 0 && lld_unit_new_block_at(unit, sparse, 77, &number) == 0);
    IS(lld_write_at(disk, sparse, 77, two, BLOCK) == 0);
    FAILS(lld_end_durable(unit), ECANCELED, "lld_end_durable");
    IS(strstr(lld_error(), "position 77") != NULL);
    FAILS(lld_abort(unit), EINVAL, "lld_abort");
    IS(lld_read(disk, first, got, BLOCK) == 0 && same(got, two));
    IS(lld_delete_block(disk, block) == 0 && lld_delete_range(disk, sparse, 77, 77, NULL) == 0);

    unit = lld_begin(disk);
    IS(lld_unit_write(unit, second, one, BLOCK) == 0 && lld_end_durable(unit) == 0);
}

static void volumes(lld_disk *disk) {
    struct lld_volume_info infos[3];
    uint64_t count = 9;
    char bytes[6000], back[6000];
    IS(lld_volume_list(disk, NULL, 0, &count) == 0 && count == 0);
    NOTHING(lld_volume_open(disk, "root"), ENOENT, "lld_volume_open");
    IS(lld_volume_create(disk, "root", 1 << 30) == 0 && lld_volume_create(disk, "a", 4 * BLOCK) == 0);
    IS(lld_volume_create(disk, "swap", 8 * BLOCK) == 0);
    FAILS(lld_volume_create(disk, "a", BLOCK), EEXIST, "lld_volume_create");
    FAILS(lld_volume_create(disk, "b", 100), EINVAL, "lld_volume_create");
    IS(lld_volume_remove(disk, "swap") == 0 && lld_volume_resize(disk, "root", 1 << 20) == 0);

    lld_volume *volume = lld_volume_open(disk, "root");
    IS(volume != NULL && lld_volume_size(volume) == 1 << 20);
    FAILS(lld_volume_remove(disk, "root"), EBUSY, "lld_volume_remove");
    memset(bytes, 'x', sizeof bytes);
    IS(lld_volume_pwrite(volume, bytes, sizeof bytes, 1000) == (ssize_t)sizeof bytes);
    IS(lld_volume_pread(volume, back, sizeof back, 999) == (ssize_t)sizeof back);
    IS(back[0] == 0 && memcmp(back + 1, bytes, sizeof back - 1) == 0);
    IS(lld_volume_pread(volume, back, sizeof back, (1 << 20) - 10) == 10);
    IS(lld_volume_pread(volume, back, sizeof back, 1 << 20) == 0);
    FAILS(lld_volume_pwrite(volume, bytes, 11, (1 << 20) - 10), EINVAL, "lld_volume_pwrite");
    IS(lld_volume_trim(volume, 0, BLOCK) == 0 && lld_volume_flush(volume) == 0);
    IS(lld_volume_pread(volume, back, 5000, 0) == 5000 && back[BLOCK - 1] == 0 && back[BLOCK] == 'x');

    lld_unit *unit = lld_begin(disk);
    IS(lld_unit_pwrite(unit, volume, "unit", 4, 500000) == 4 && lld_unit_trim(unit, volume, BLOCK, 100) == 0);
    IS(lld_unit_pread(unit, volume, back, 4, 500000) == 4 && memcmp(back, "unit", 4) == 0);
    IS(lld_volume_pread(volume, back, 4, 500000) == 4 && memcmp(back, "unit", 4) != 0);
    IS(lld_end(unit) == 0);
    IS(lld_volume_pread(volume, back, 4, 500000) == 4 && memcmp(back, "unit", 4) == 0);
    IS(lld_volume_pread(volume, back, 101, BLOCK) == 101 && back[99] == 0 && back[100] == 'x');

    IS(lld_volume_list(disk, infos, 3, &count) == 0 && count == 2);
    IS(strcmp(infos[0].name, "a") == 0 && infos[0].bytes == 4 * BLOCK && infos[0].blocks == 0);
    IS(strcmp(infos[1].name, "root") == 0 && infos[1].bytes == 1 << 20 && infos[1].blocks == 2);
    memset(infos, 0, sizeof infos);
    IS(lld_volume_list(disk, infos, 1, &count) == 0 && count == 2 && infos[1].name[0] == '\0');
    uint64_t len;
    IS(lld_list_len(disk, infos[0].list, &len) == 0 && len == 0);
    IS(lld_volume_close(volume) == 0);
}

static void questions(lld_disk *disk) {
    struct lld_space space;
    struct lld_info info;
    struct lld_counters before, after;
    struct lld_checked checked;
    char text[64] = "?";
    IS(lld_counters(disk, &before) == 0 && lld_flush(disk) == 0 && lld_checkpoint(disk) == 0);
    IS(lld_clean(disk, 2) == 0 && lld_clean(disk, UINT64_MAX) == 0);
    IS(lld_counters(disk, &after) == 0 && after.checkpoints > before.checkpoints && after.client_bytes > 5 * BLOCK);
    IS(after.flushes > 0 && after.bytes > after.client_bytes && after.chunks > 0 && after.unreadable == 0);
    IS(after.units > 0 && after.durable > 0 && after.durable <= after.units);
    IS(lld_space(disk, &space) == 0 && space.used > 5 * BLOCK && space.used < space.all && space.all < 32 << 20);
    IS(lld_info(disk, &info) == 0 && info.uuid[0] == 7 && info.uuid[1] == 0);
    IS(info.block_size == BLOCK && info.segment_size == 64 << 10 && info.segments > 400 && info.segments < 512);
    IS(info.free_segments > 0 && info.free_segments < info.segments && info.open_units == 0 && info.chunk > 0);
    IS(lld_check(disk, 1, &checked, text, sizeof text) == 0);
    IS(checked.findings == 0 && checked.corrupt == 0 && checked.text_size == 1 && text[0] == '\0');
    IS(checked.blocks == info.blocks && checked.blocks > 5);
    IS(lld_check(disk, 0, &checked, NULL, 0) == 0 && checked.findings == 0);
}

/* What is left when the disk is opened for reading; nothing of it can be changed. */
static void again(const char *path) {
    struct lld_open_options options = {0};
    options.flags = LLD_READ_ONLY;
    struct lld_recovered recovered;
    lld_disk *disk = lld_open(path, &options, &recovered), *beside = lld_open(path, &options, NULL);
    uint64_t number, len, count;
    char back[4];
    IS(disk != NULL && beside != NULL && disk != beside && recovered.chunks == 0);
    IS(lld_list_len(disk, kept, &len) == 0 && len == 3);
    IS(lld_block_at(disk, kept, 0, &number) == 1 && number == first);
    IS(lld_read(disk, first, got, BLOCK) == 0 && same(got, two));
    IS(lld_read(disk, second, got, BLOCK) == 0 && same(got, one));
    IS(lld_block_at(disk, kept, 2, &number) == 1 && number == last_block);
    IS(lld_read(disk, last_block, got, BLOCK) == 0 && same(got, one));
    IS(lld_list_len(disk, sparse, &len) == 0 && len == 2);
    IS(lld_read_at(disk, sparse, 9, got, BLOCK) == 0 && same(got, one));
    IS(lld_read_at(disk, sparse, 11, got, BLOCK) == 0 && same(got, two));
    IS(lld_volume_list(disk, NULL, 0, &count) == 0 && count == 2);
    lld_volume *volume = lld_volume_open(disk, "root");
    IS(lld_volume_pread(volume, back, 4, 500000) == 4 && memcmp(back, "unit", 4) == 0);
    FAILS(lld_volume_pwrite(volume, back, 4, 0), EROFS, "lld_volume_pwrite");
    FAILS(lld_write(disk, first, one, BLOCK), EROFS, "lld_write");
    FAILS(lld_new_list(disk, 0, &number), EROFS, "lld_new_list");
    FAILS(lld_volume_create(disk, "c", BLOCK), EROFS, "lld_volume_create");
    NOTHING(lld_open(path, NULL, NULL), EBUSY, "lld_open");
    IS(lld_volume_close(volume) == 0 && lld_close(disk) == 0 && lld_close(beside) == 0);
}

/* Own lists, and then volumes beside them: list 1 is taken, so that there can be none. */
static void mixed(const char *path) {
    struct lld_format_options options = {0};
    options.flags = LLD_OVERWRITE;
    IS(lld_format(path, &options) == 0);
    lld_disk *disk = lld_open(path, NULL, NULL);
    uint64_t list;
    IS(disk != NULL && lld_new_list(disk, 0, &list) == 0 && list == 1);
    FAILS(lld_volume_create(disk, "a", BLOCK), EOPNOTSUPP, "lld_volume_create");
    IS(lld_close(disk) == 0);
}

int main(int argc, char **argv) {
    IS(argc == 2 && lld_error()[0] == '\0');
    memset(one, 1, BLOCK);
    memset(two, 2, BLOCK);
    lld_disk *disk = made(argv[1]);
    uint64_t catalogue;
    IS(lld_volume_create(disk, "x", BLOCK) == 0 && lld_volume_remove(disk, "x") == 0);
    IS(lld_next_list(disk, 0, &catalogue) == 1 && catalogue == 1);
    lists(disk);
    units(disk);
    volumes(disk);
    questions(disk);
    IS(lld_write_at(disk, sparse, 11, two, BLOCK) == 0 && lld_close(disk) == 0);
    again(argv[1]);
    mixed(argv[1]);
    puts("all as it should be");
    return 0;
}
