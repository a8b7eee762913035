/* Units of two threads, until the program is killed; then what they have left.
 *
 *   killed make DISK         makes the disk
 *   killed work DISK         each thread makes unit after unit, and says on standard output which one is durable, and
 *                            how many bytes units have written before their end
 *   killed look DISK A B     of each thread's last unit all is there, and it is not before A and B */
#include <inttypes.h>
#include <pthread.h>
#include <unistd.h>

#include "check.h"

/* Blocks that each unit writes: with a cache this small some of them are written before its end. */
enum { BLOCK = 512, WRITES = 300, THREADS = 2, SPARE = 8 };

static lld_disk *disk;

/* What a thread's n-th unit does: every block of the sparse list is n, and the ordered one has n % SPARE + 1 blocks. */
struct thread {
    pthread_t thread;
    uint64_t no, sparse, ordered, unit;
};

static void fill(uint64_t *block, const struct thread *of, uint64_t n) {
    for (int i = 0; i < BLOCK / 8; i++) {
        block[i] = n << 8 | of->no;
    }
}

static void shape(lld_unit *unit, const struct thread *of, uint64_t wanted) {
    uint64_t len, block;
    IS(lld_unit_list_len(unit, of->ordered, &len) == 0);
    for (; len < wanted; len++) {
        IS(lld_unit_new_block(unit, of->ordered, &block) == 0);
    }
    for (; len > wanted; len--) {
        IS(lld_unit_block_at(unit, of->ordered, len - 1, &block) == 1 && lld_unit_delete_block(unit, block) == 0);
    }
}

static void *work(void *argument) {
    struct thread *of = argument;
    uint64_t block[BLOCK / 8];
    for (uint64_t n = of->unit + 1;; n++) {
        lld_unit *unit = lld_begin(disk);
        IS(unit != NULL);
        fill(block, of, n);
        for (uint64_t at = 0; at < WRITES; at++) {
            IS(lld_unit_write_at(unit, of->sparse, at, block, BLOCK) == 0);
        }
        shape(unit, of, n % SPARE + 1);
        if (n % 5 == 4) {
            IS(lld_abort(unit) == 0);
        } else if (n % 5 == 2) {
            IS(lld_end_durable(unit) == 0);
            char line[96];
            struct lld_counters counters;
            IS(lld_counters(disk, &counters) == 0);
            const char *format = "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n";
            int len = snprintf(line, sizeof line, format, of->no, n, counters.spilled_bytes);
            IS(write(STDOUT_FILENO, line, len) == len);
        } else {
            IS(lld_end(unit) == 0);
        }
    }
    return NULL;
}

/* The thread's lists, in one unit if they are not there, and its last unit, all of which is there. */
static void find(struct thread *of, uint64_t no) {
    uint64_t block[BLOCK / 8], n, len;
    of->no = no;
    of->sparse = 2 * no + 1;
    of->ordered = 2 * no + 2;
    of->unit = 0;
    if (lld_list_len(disk, of->sparse, &len) < 0) {
        lld_unit *unit = lld_begin(disk);
        uint64_t sparse, ordered;
        IS(lld_unit_new_list(unit, 1, &sparse) == 0 && sparse == of->sparse);
        IS(lld_unit_new_list(unit, 0, &ordered) == 0 && ordered == of->ordered);
        IS(lld_end_durable(unit) == 0);
        return;
    }
    IS(len == 0 || len == WRITES);
    IS(lld_read_at(disk, of->sparse, 0, block, BLOCK) == 0);
    of->unit = block[0] >> 8;
    for (uint64_t at = 0; at < WRITES; at++) {
        uint64_t wanted[BLOCK / 8] = {0};
        if (of->unit > 0) {
            fill(wanted, of, of->unit);
        }
        IS(lld_read_at(disk, of->sparse, at, block, BLOCK) == 0 && memcmp(block, wanted, BLOCK) == 0);
    }
    n = of->unit;
    IS(n % 5 != 4 && lld_list_len(disk, of->ordered, &len) == 0 && len == (n > 0 ? n % SPARE + 1 : 0));
}

int main(int argc, char **argv) {
    struct thread threads[THREADS];
    struct lld_open_options options = {0};
    struct lld_recovered recovered;
    IS(argc >= 3);
    if (strcmp(argv[1], "make") == 0) {
        struct lld_format_options format = {0};
        format.size = 64 << 20;
        format.block_size = BLOCK;
        IS(lld_format(argv[2], &format) == 0);
        return 0;
    }
    options.cache_size = 512 << 10;
    disk = lld_open(argv[2], &options, &recovered);
    IS(disk != NULL && recovered.damaged[0] == '\0');
    for (uint64_t no = 0; no < THREADS; no++) {
        find(&threads[no], no);
    }
    if (strcmp(argv[1], "work") == 0) {
        for (int no = 0; no < THREADS; no++) {
            IS(pthread_create(&threads[no].thread, NULL, work, &threads[no]) == 0);
        }
        pthread_join(threads[0].thread, NULL);
    }
    struct lld_checked checked;
    char text[4096];
    IS(argc == 3 + THREADS);
    for (int no = 0; no < THREADS; no++) {
        IS(threads[no].unit >= strtoull(argv[3 + no], NULL, 10));
        printf("%" PRIu64 " ", threads[no].unit);
    }
    IS(lld_check(disk, 1, &checked, text, sizeof text) == 0);
    if (checked.findings > 0) {
        fputs(text, stderr);
        return 1;
    }
    IS(lld_close(disk) == 0);
    printf("whole after %" PRIu64 " chunks, %s unfinished\n", recovered.chunks, recovered.unfinished ? "one" : "none");
    return 0;
}
