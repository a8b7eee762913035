/* Patchgroups: these changes before those, without waiting for the disk.
 *
 * A group has the changes that are made while it is engaged. After a crash at any moment, no change of a group is there
 * while a change of a group that it depends on is missing. The life of a group:
 *
 *     pg_create ──► pg_depend(it, others) ──► pg_engage … pg_disengage, any number of times ──► pg_depend(others, it)
 *                                                                                               from here on, sealed
 *
 * Numbers of groups belong to the process: its threads share them, a child starts with a copy of them and of what is
 * engaged, exec keeps them, exit closes them. Every function that returns int or pg_t returns -1 with errno when it
 * fails. The calls may be made from any thread, but not between fork and exec of a program with several threads.
 *
 * Link with -lpatchgroup (pkg-config: patchgroup). User's page: docs/patchgroups.md of Featherstitch.
 * MIT OR Apache-2.0. */
#ifndef PATCHGROUP_H
#define PATCHGROUP_H

#ifdef __cplusplus
extern "C" {
#endif

/* A group. On the first volume that a process opens it is the number that the ioctls have. */
typedef int pg_t;

/* For pg_open: where there are no patchgroups, have pg_depend and pg_sync wait (syncfs) instead. On file systems in user
 * space, which syncfs does not reach, pg_open still fails with EOPNOTSUPP. */
#define PG_FALLBACK_FSYNC 1

/* Opens the volume that a file or directory is on, and uses it as pg_use does. Returns the volume's number. ENOTTY,
 * ENOSYS and EOPNOTSUPP say that it has no patchgroups. A volume stays busy for umount until the process ends. */
int pg_open(const char *path, int flags);

/* Has pg_create make groups on this volume, in all threads. Without pg_open and pg_use it is the volume of the current
 * directory at the first pg_create. Returns the volume that was used before, or -1 with EBADF. */
int pg_use(int volume);

/* Makes a group. */
pg_t pg_create(void);

/* All changes of Q come after those of P, which is sealed: it can be engaged no more. EINVAL once Q was engaged or
 * depended on, EBUSY while any process has P engaged, EXDEV for groups of different volumes. */
int pg_depend(pg_t Q, pg_t P);

/* From now on, the changes of this process on the volume belong to P, too. */
int pg_engage(pg_t P);
int pg_disengage(pg_t P);

/* The same for this process's changes of one file only, or of the names in one directory, by its descriptor. */
int pg_engage_fd(pg_t P, int fd);
int pg_disengage_fd(pg_t P, int fd);

/* Waits until the changes of P are on the medium, with all that they come after. */
int pg_sync(pg_t P);

/* Gives the number back. Order that was asked for stays. */
int pg_close(pg_t P);

#ifdef __cplusplus
}
#endif

#endif
