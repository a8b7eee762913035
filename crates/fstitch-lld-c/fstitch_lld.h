/* Logical disks: blocks and lists instead of sectors, and any changes as a whole.
 *
 * Changes that are made in a unit are seen by nobody else before its end, and happen all at once there: after a crash
 * at any moment all of them are there, or none.
 *
 *     lld_format ──► lld_open ──► lld_begin ──► lld_unit_… any number of times ──► lld_end, lld_end_durable, lld_abort
 *                        │                                                                                  │
 *                        └── lld_… outside of units: each call is a unit of its own ◄───────────────────────┘
 *
 * What has returned is stable when lld_flush, lld_checkpoint, lld_end_durable or lld_close has returned; a crash
 * leaves what was stable, and of the rest a prefix, in the order in which the calls have returned. One program at a
 * time has a disk open for writing.
 *
 * Functions return -1 (those that return a pointer: NULL) when they fail, with errno and a text (lld_error); then
 * nothing has happened unless they say otherwise. Handles, which are no addresses of anything, are looked up by each
 * call: NULL, one that was closed, ended or aborted, and one of another kind are EINVAL. So are places and memory
 * that are NULL. Other errors:
 *
 *     ENOENT          there is no such list, block or volume, or no such block in the list
 *     EEXIST          the position, or the name, is taken
 *     EINVAL          not for this kind of list; memory of another size than a block; a name or size that cannot be
 *     ENOSPC          the disk is full
 *     EBUSY           somebody has the disk, or the volume, open
 *     EROFS           the disk is open for reading only, or does not accept changes since a write has failed
 *     EDEADLK         the unit would wait for the end of another one of this thread (LLD_SEQUENTIAL)
 *     ECANCELED       of lld_end and lld_end_durable: others have removed what the unit builds on
 *     EUCLEAN         something on the disk is damaged, or this is none
 *     EOPNOTSUPP      a disk of another version, or one that is used for something else; neither file nor block device
 *     EIO             the medium has failed
 *     ENOTRECOVERABLE a defect of the library; the disk must be closed, and may be opened again
 *
 * The calls may be made from any thread, several at once. A child that has been forked finds nothing of its parent's
 * open.
 *
 * Link with -lfstitch_lld (pkg-config: fstitch_lld). User's page: docs/lld.md of Featherstitch.
 * MIT OR Apache-2.0. */
#ifndef FSTITCH_LLD_H
#define FSTITCH_LLD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles of what is open. */
typedef struct lld_disk lld_disk;
typedef struct lld_unit lld_unit;
typedef struct lld_volume lld_volume;

/* Why the last call of this thread failed, in words; "" if none has. It stays until the next one fails. */
const char *lld_error(void);

/* ---- Disks ---- */

/* Whatever is at the path may be written over. */
#define LLD_OVERWRITE 1u
/* What is cold is compressed, by LZ4, when it is moved and takes less then. Blocks take more again when they are
 * written: on a disk that is full with compressed ones that can fail with ENOSPC. */
#define LLD_COMPRESS 2u

/* How a disk is made. Zeros everywhere are the defaults, which NULL stands for, too; reserved must be zeros. */
struct lld_format_options {
    uint64_t size;         /* bytes of a new file; 0: those that a file or device has */
    uint32_t block_size;   /* bytes of a block: a power of two from 512 to 65536; 0: 4096 */
    uint32_t segment_size; /* bytes of a segment: a power of two from 64 KiB to 64 MiB; 0: what suits the size */
    uint8_t uuid[16];      /* zeros: random */
    uint32_t flags;        /* LLD_OVERWRITE, LLD_COMPRESS */
    uint32_t reserved[7];
};

/* Makes an empty disk in a file, which is made with it, or on a block device. What is there already is EEXIST without
 * LLD_OVERWRITE. */
int lld_format(const char *path, const struct lld_format_options *options);

/* Nothing is written: what a crash has left is done again in memory only. */
#define LLD_READ_ONLY 1u
/* One unit at a time: lld_begin waits for the end of the unit before. */
#define LLD_SEQUENTIAL 2u
/* Goes on from an older state than was promised where what was stable is damaged: what is behind it is written over.
 * */
#define LLD_ACCEPT_LOSS 4u

/* What is read while units are open: a unit sees its own changes and everybody else what has ended; everybody, units
 * too, sees what has ended; everybody sees the newest change of all. With the last two a part of a block of a volume
 * cannot be changed in a unit, with the last one nowhere (EOPNOTSUPP). */
#define LLD_SEE_OWN 0u
#define LLD_SEE_COMMITTED 1u
#define LLD_SEE_LATEST 2u

/* How a disk is opened. Zeros everywhere are the defaults, which NULL stands for, too; reserved must be zeros. */
struct lld_open_options {
    uint64_t cache_size;          /* bytes of memory for maps and open units; 0: 128 MiB */
    uint64_t checkpoint_interval; /* bytes of log that the next opening may have to read; 0: 64 MiB */
    uint32_t flags;               /* LLD_READ_ONLY, LLD_SEQUENTIAL, LLD_ACCEPT_LOSS */
    uint32_t visibility;          /* LLD_SEE_OWN, LLD_SEE_COMMITTED, LLD_SEE_LATEST */
    uint32_t reserved[6];
};

/* What opening did. */
struct lld_recovered {
    uint64_t chunks;     /* parts of the log that were done again; none of a disk that was closed */
    uint64_t records;    /* what they say */
    uint32_t unfinished; /* not 0: a unit had not ended, and nothing of it has happened */
    uint32_t torn;       /* not 0: the last write had not ended */
    char damaged[512];   /* what was stable and is damaged, so that the state is an older one; "" of a whole disk */
};

/* Opens a disk. recovered may be NULL. */
lld_disk *lld_open(const char *path, const struct lld_open_options *options, struct lld_recovered *recovered);

/* Makes everything stable, and the next opening short. EBUSY, and the disk stays open, while units or volumes of it
 * are; with any other error it is closed. */
int lld_close(lld_disk *disk);

/* Bytes of a block. */
int lld_block_size(lld_disk *disk);

/* Makes everything stable that has returned. */
int lld_flush(lld_disk *disk);

/* The same, and has recovery begin here. Happens by itself every now and then. */
int lld_checkpoint(lld_disk *disk);

/* Empties so many segments that others find them free. Happens by itself when few are. */
int lld_clean(lld_disk *disk, uint64_t segments);

/* What a check found. */
struct lld_checked {
    uint64_t blocks;    /* blocks of the disk */
    uint64_t findings;  /* what is wrong; 0: nothing */
    uint64_t corrupt;   /* findings that are damage */
    uint64_t text_size; /* bytes that the whole text takes, with its end */
};

/* Checks every map, list and count, and with contents != 0 every block. The findings are written to text, one a line,
 * as far as size bytes have room for them; text may be NULL if size is 0. Everybody else waits meanwhile. Returns 0
 * also if something is wrong. */
int lld_check(lld_disk *disk, int contents, struct lld_checked *checked, char *text, size_t size);

/* How much a disk can store, in bytes. */
struct lld_space {
    uint64_t all;
    uint64_t used;
};
int lld_space(lld_disk *disk, struct lld_space *space);

/* What a disk is. */
struct lld_info {
    uint8_t uuid[16];
    uint32_t block_size;
    uint32_t segment_size;
    uint64_t segments;
    uint64_t free_segments;
    uint64_t blocks;
    uint64_t lists;
    uint64_t checkpoint; /* number of the newest checkpoint */
    uint64_t epoch;      /* how often the disk was opened for writing */
    uint64_t chunk;      /* number of the newest part of the log */
    uint64_t open_units;
    uint64_t shadows;    /* versions of blocks that open units have written */
    uint64_t compression; /* 1: what is cold is compressed */
};
int lld_info(lld_disk *disk, struct lld_info *info);

/* What has been written since the disk was opened. */
struct lld_counters {
    uint64_t chunks;        /* parts of the log */
    uint64_t bytes;         /* all of them */
    uint64_t client_bytes;  /* contents of blocks */
    uint64_t flushes;       /* of the device */
    uint64_t checkpoints;
    uint64_t cleaned;       /* segments that were emptied */
    uint64_t moved_bytes;   /* for that */
    uint64_t spilled_bytes; /* of units, before their end, for want of memory */
    uint64_t unreadable;    /* segments that stay as they are, because something in them cannot be read */
    uint64_t units;         /* that have ended, not those that were aborted or in conflict */
    uint64_t durable;       /* those of them that were to be stable */
    uint64_t packed_bytes;  /* that blocks take less because they were compressed */
};
int lld_counters(lld_disk *disk, struct lld_counters *counters);

/* ---- Lists and blocks ---- */

/* A block has a number and is in one list. An ordered list has its blocks one behind the other; a sparse list has
 * them at positions that the program chooses, with gaps between them. Numbers begin with 1; what was removed leaves
 * its number to nobody. List 1 is the catalogue of a disk with volumes: who wants both makes a volume first, or its
 * own lists are in the way (EOPNOTSUPP). */

/* Makes a list: ordered, or with sparse != 0 sparse. */
int lld_new_list(lld_disk *disk, int sparse, uint64_t *list);

/* Removes a list with its blocks. */
int lld_delete_list(lld_disk *disk, uint64_t list);

/* The first list from this number on. Returns 1, or 0 if there is none. */
int lld_next_list(lld_disk *disk, uint64_t from, uint64_t *list);

/* Make a block, which reads as zeros: in front of all others of an ordered list, behind another one of it, or at a
 * position of a sparse list. */
int lld_new_block(lld_disk *disk, uint64_t list, uint64_t *block);
int lld_new_block_after(lld_disk *disk, uint64_t list, uint64_t before, uint64_t *block);
int lld_new_block_at(lld_disk *disk, uint64_t list, uint64_t position, uint64_t *block);

/* Removes a block. */
int lld_delete_block(lld_disk *disk, uint64_t block);

/* Read and write a block; size must be that of a block. */
int lld_read(lld_disk *disk, uint64_t block, void *into, size_t size);
int lld_write(lld_disk *disk, uint64_t block, const void *from, size_t size);

/* The same with the block at a position of a sparse list. Where there is none zeros are read, and one is made to be
 * written. */
int lld_read_at(lld_disk *disk, uint64_t list, uint64_t position, void *into, size_t size);
int lld_write_at(lld_disk *disk, uint64_t list, uint64_t position, const void *from, size_t size);

/* The block at a position of a list; of an ordered one it is counted from 0. Returns 1, or 0 if there is none. */
int lld_block_at(lld_disk *disk, uint64_t list, uint64_t position, uint64_t *block);

/* Removes the blocks of a sparse list from one position to another one, that one too; not all at once, outside of a
 * unit. removed, how many there were, may be NULL. */
int lld_delete_range(lld_disk *disk, uint64_t list, uint64_t from, uint64_t last, uint64_t *removed);

/* The first position of a sparse list from one on that has a block, and the block, which may be NULL. Returns 1, or 0
 * if there is none. */
int lld_next_at(lld_disk *disk, uint64_t list, uint64_t from, uint64_t *position, uint64_t *block);

/* The neighbours of a block in its list. Return 1, or 0 behind the last and in front of the first one. */
int lld_block_after(lld_disk *disk, uint64_t list, uint64_t block, uint64_t *after);
int lld_block_before(lld_disk *disk, uint64_t list, uint64_t block, uint64_t *before);

/* How many blocks a list has. */
int lld_list_len(lld_disk *disk, uint64_t list, uint64_t *len);

/* ---- Units ---- */

/* Begins a unit. */
lld_unit *lld_begin(lld_disk *disk);

/* Everything happens now, and is stable after the second one. The unit has ended, also if this fails; then nothing of
 * it has happened, but where the medium fails nobody knows. */
int lld_end(lld_unit *unit);
int lld_end_durable(lld_unit *unit);

/* Nothing happens. */
int lld_abort(lld_unit *unit);

/* The calls above, in a unit. */
int lld_unit_new_list(lld_unit *unit, int sparse, uint64_t *list);
int lld_unit_delete_list(lld_unit *unit, uint64_t list);
int lld_unit_new_block(lld_unit *unit, uint64_t list, uint64_t *block);
int lld_unit_new_block_after(lld_unit *unit, uint64_t list, uint64_t before, uint64_t *block);
int lld_unit_new_block_at(lld_unit *unit, uint64_t list, uint64_t position, uint64_t *block);
int lld_unit_delete_block(lld_unit *unit, uint64_t block);
int lld_unit_read(lld_unit *unit, uint64_t block, void *into, size_t size);
int lld_unit_write(lld_unit *unit, uint64_t block, const void *from, size_t size);
int lld_unit_read_at(lld_unit *unit, uint64_t list, uint64_t position, void *into, size_t size);
int lld_unit_write_at(lld_unit *unit, uint64_t list, uint64_t position, const void *from, size_t size);
int lld_unit_block_at(lld_unit *unit, uint64_t list, uint64_t position, uint64_t *block);
int lld_unit_delete_range(lld_unit *unit, uint64_t list, uint64_t from, uint64_t last, uint64_t *removed);
int lld_unit_next_at(lld_unit *unit, uint64_t list, uint64_t from, uint64_t *position, uint64_t *block);
int lld_unit_block_after(lld_unit *unit, uint64_t list, uint64_t block, uint64_t *after);
int lld_unit_block_before(lld_unit *unit, uint64_t list, uint64_t block, uint64_t *before);
int lld_unit_list_len(lld_unit *unit, uint64_t list, uint64_t *len);

/* ---- Volumes ---- */

/* The longest name of a volume, in bytes. */
#define LLD_NAME_MAX 200

/* A volume. */
struct lld_volume_info {
    uint64_t list;   /* that its blocks are in, at their positions */
    uint64_t bytes;  /* its size */
    uint64_t blocks; /* blocks that it takes */
    char name[208];
};

/* Makes a volume, which takes nothing until it is written. The size is a multiple of a block's; a name is UTF-8
 * without control characters, '/' and '?'. This, resizing and removing are stable when they return. */
int lld_volume_create(lld_disk *disk, const char *name, uint64_t size);

/* Changes its size, also while it is open. What is beyond a smaller one is gone. */
int lld_volume_resize(lld_disk *disk, const char *name, uint64_t size);

/* Removes it; EBUSY while it is open. */
int lld_volume_remove(lld_disk *disk, const char *name);

/* Writes the first volumes by their names, as many as there is room for; count is how many there are. */
int lld_volume_list(lld_disk *disk, struct lld_volume_info *volumes, size_t room, uint64_t *count);

lld_volume *lld_volume_open(lld_disk *disk, const char *name);
int lld_volume_close(lld_volume *volume);

/* Its bytes. */
int64_t lld_volume_size(lld_volume *volume);

/* Reads up to size bytes; returns how many there were before the end. */
ssize_t lld_volume_pread(lld_volume *volume, void *into, size_t size, uint64_t offset);

/* Writes size bytes, none if not all of them are in the volume (EINVAL), and returns size. Each block is written as a
 * whole; several of them are so in a unit, while outside of one a failure may come after the first ones. */
ssize_t lld_volume_pwrite(lld_volume *volume, const void *from, size_t size, uint64_t offset);

/* Has bytes, all of which must be in the volume, read as zeros, and gives the blocks back that they take; several at
 * once in a unit only. */
int lld_volume_trim(lld_volume *volume, uint64_t offset, uint64_t size);

/* Makes everything stable that has been written, as lld_flush. */
int lld_volume_flush(lld_volume *volume);

/* The same in a unit of the volume's disk: seen by nobody else before its end. */
ssize_t lld_unit_pread(lld_unit *unit, lld_volume *volume, void *into, size_t size, uint64_t offset);
ssize_t lld_unit_pwrite(lld_unit *unit, lld_volume *volume, const void *from, size_t size, uint64_t offset);
int lld_unit_trim(lld_unit *unit, lld_volume *volume, uint64_t offset, uint64_t size);

#ifdef __cplusplus
}
#endif

#endif
