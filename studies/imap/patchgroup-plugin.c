/* A Dovecot plugin: replies that promise durability are sent when they are true.
 *
 * It is for a server that runs under ordered fsync (`fstitch order`). There, every fsync of Dovecot's only
 * orders, and returns at once, so nothing that a client was told is durable; and for most commands nobody
 * needs that: a message that was copied or marked as deleted is still in the source. This plugin has all
 * that the process changes belong to one group, and waits for that group before the tagged OK of the few
 * commands after which a client may forget what it knows. What the group's changes come after is waited for
 * as well: that is every ordering point before.
 *
 * It replaces the client's `send_tagline`, and is no hook after the command: EXPUNGE, CHECK and MOVE work on
 * the mailbox later, when it is synchronised, and the tagged line is what ends them all. Untagged lines may
 * leave earlier. */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include <dovecot/config.h>
#include <dovecot/lib.h>
#include <dovecot/imap-common.h>
#include <dovecot/mail-user.h>
#include <patchgroup.h>

/* CHECK and EXPUNGE are the paper's. CLOSE and MOVE expunge, LOGOUT closes; after APPEND the client
 * forgets its copy. */
static const char *const durable[] = {"CHECK", "EXPUNGE", "CLOSE", "MOVE", "APPEND", "LOGOUT"};

static pg_t group = -1;
static imap_client_created_func_t *next_hook;
static void (*send_tagline)(struct client_command_context *cmd, const char *data);

const char *patchgroup_plugin_version = DOVECOT_ABI_VERSION;
void patchgroup_plugin_init(struct module *module);
void patchgroup_plugin_deinit(void);

static bool promises_durability(const struct client_command_context *cmd)
{
	if (cmd->name == NULL)
		return FALSE;
	const char *name = strncasecmp(cmd->name, "UID ", 4) == 0 ? cmd->name + 4 : cmd->name;
	for (size_t i = 0; i < sizeof durable / sizeof *durable; i++)
		if (strcasecmp(name, durable[i]) == 0)
			return TRUE;
	return FALSE;
}

static void send_tagline_when_stable(struct client_command_context *cmd, const char *data)
{
	if (strncmp(data, "OK", 2) == 0 && promises_durability(cmd) && pg_sync(group) < 0) {
		i_error("pg_sync: %s", strerror(errno));
		data = "NO [SERVERBUG] The changes are not known to be stable.";
	}
	send_tagline(cmd, data);
}

/* The first client of the process: from now on, all that the process changes belongs to the group. */
static void engage(struct client *client)
{
	const char *volume = mail_user_plugin_getenv(client->user, "patchgroup_volume");
	if (volume == NULL)
		i_fatal("plugin { patchgroup_volume } is not set");
	if (pg_open(volume, PG_FALLBACK_FSYNC) < 0 || (group = pg_create()) < 0 || pg_engage(group) < 0)
		i_fatal("%s: patchgroups: %s", volume, strerror(errno));
}

static void client_created(struct client **client)
{
	if (group < 0)
		engage(*client);
	send_tagline = (*client)->v.send_tagline;
	(*client)->v.send_tagline = send_tagline_when_stable;
	if (next_hook != NULL)
		next_hook(client);
}

void patchgroup_plugin_init(struct module *module ATTR_UNUSED)
{
	next_hook = imap_client_created_hook_set(client_created);
}

void patchgroup_plugin_deinit(void)
{
	imap_client_created_hook_set(next_hook);
}
