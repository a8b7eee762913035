/* What the programs of these tests say when something is not as it should be. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fstitch_lld.h>

#define IS(condition)                                                                                                 \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: not so: %s (%s: %s)\n", __FILE__, __LINE__, #condition, strerror(errno),          \
                    lld_error());                                                                                     \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* That a call fails with this number, and says its name. */
#define FAILS(call, number, name)                                                                                     \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        int failed_ = (call) < 0;                                                                                     \
        IS(failed_ && errno == (number) && strncmp(lld_error(), name ": ", strlen(name) + 2) == 0);                   \
    } while (0)

/* The same of one that returns a pointer. */
#define NOTHING(call, number, name) FAILS((call) == NULL ? -1 : 0, number, name)
