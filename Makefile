# The commands of this repository. `make demo` and `make test` install what is missing and then do the work.

CARGO ?= cargo
STRIP ?= strip
PREFIX ?= /usr/local
DESTDIR ?=
# Not every shell does this in `make PREFIX=~/.local`.
override PREFIX := $(patsubst ~/%,$(HOME)/%,$(PREFIX))
# mount(8) looks for its helpers here and nowhere else. Who installs for himself alone has none.
MOUNT_HELPER_DIR ?= $(if $(filter / /usr /usr/local,$(PREFIX)),/sbin)
# Where cargo puts what it builds, so that the targets below find it.
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# How what is installed is built; `dev` is quicker to build.
PROFILE ?= release
BUILT := $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
CLIENT := crates/fstitch-client-c
LLD := crates/fstitch-lld-c
# What is raced: what `make optimized` makes, or with PLAIN=1 a plain release build, which takes neither root nor FUSE.
RACED := $(TARGET)/$(if $(PLAIN),release,optimized)/fstitch
# What is installed: a plain build, or with OPTIMIZED=1 what `make optimized` makes.
PROGRAM := $(if $(OPTIMIZED),$(TARGET)/optimized,$(BUILT))/fstitch
LIBRARY := $(BUILT)/libpatchgroup.so
LLD_LIBRARY := $(BUILT)/libfstitch_lld.so
EXTENSION := $(BUILT)/libfstitch_lld_sqlite.so
# What they are made of: newer than all of it, they are installed without cargo, which root may not have.
SOURCES := $(shell find Cargo.toml Cargo.lock crates/*/Cargo.toml crates/*/build.rs crates/*/src -type f)
CLIENT_SOURCES := $(filter Cargo.% crates/fstitch-client%,$(SOURCES))
DISK_SOURCES := $(filter Cargo.% $(foreach crate,core disk lld,crates/fstitch-$(crate)/%),$(SOURCES))
LLD_SOURCES := $(DISK_SOURCES) $(filter $(LLD)/%,$(SOURCES))
EXTENSION_SOURCES := $(DISK_SOURCES) $(filter crates/fstitch-lld-sqlite/%,$(SOURCES))
PROGRAM_SOURCES := $(filter-out $(CLIENT)/% $(LLD)/% crates/fstitch-lld-sqlite/%,$(SOURCES))

.PHONY: demo test install uninstall build optimized build-client install-client build-lld install-lld build-sqlite install-sqlite
.PHONY: proofs studies bench clean

# Makes an ext2 image, mounts it, unpacks a tree, kills the mount in mid-write, checks, and tells what it saw.
demo: build
	@scripts/setup.sh demo
	@$(BUILT)/fstitch demo

# Everything that must pass before a change lands, and once more that nothing was skipped in silence.
test:
	@scripts/setup.sh test
	$(CARGO) xtask ci

build:
	@scripts/setup.sh build
	$(CARGO) build --profile $(PROFILE) --locked -p fstitch
	@touch -c $(BUILT)/fstitch

# The program 10 to 15 % faster: built, watched at work, and built again for that. Ten minutes.
optimized:
	@scripts/setup.sh optimized
	@scripts/optimized.sh $(TARGET)/optimized/fstitch

# The long proofs: suites, real trees, the kernel's own driver, 200 kills. Takes an hour or more.
proofs: build
	@scripts/setup.sh proofs
	@FSTITCH=$(BUILT)/fstitch scripts/all-proofs.sh

# Real programs, what ordering buys them and what a crash leaves of them: the numbers of docs/studies.md. Half an hour.
studies: build build-client build-sqlite
	@scripts/setup.sh studies
	@FSTITCH=$(BUILT)/fstitch studies/run.sh

# Races the program against the kernel's file systems and others, and writes docs/benchmarks.md. Forty minutes at most.
bench: $(if $(PLAIN),build,optimized)
	@scripts/setup.sh bench
	@$(RACED) bench --time 1620s --report docs/benchmarks.md --readme README.md

# What C programs need to order their changes; `pip install ./python` is the same for Python.
build-client:
	@scripts/setup.sh build
	$(CARGO) build --profile $(PROFILE) --locked -p fstitch-client-c
	@touch -c $(LIBRARY) $(LIBRARY:.so=.a)

# What C programs need to use logical disks; `pip install ./python` has the module for Python, which loads it.
build-lld:
	@scripts/setup.sh build
	$(CARGO) build --profile $(PROFILE) --locked -p fstitch-lld-c
	@touch -c $(LLD_LIBRARY) $(LLD_LIBRARY:.so=.a)

# What SQLite loads to keep databases in a logical disk.
build-sqlite:
	@scripts/setup.sh build
	$(CARGO) build --profile $(PROFILE) --locked -p fstitch-lld-sqlite
	@touch -c $(EXTENSION)

# Built when it is missing or older than its sources; `make build` builds in any case.
$(PROGRAM): $(PROGRAM_SOURCES)
	@$(call need_cargo,$@)
	$(MAKE) $(if $(OPTIMIZED),optimized,build)

$(LIBRARY): $(CLIENT_SOURCES)
	@$(call need_cargo,$@)
	$(MAKE) build-client

$(LLD_LIBRARY): $(LLD_SOURCES)
	@$(call need_cargo,$@)
	$(MAKE) build-lld

$(EXTENSION): $(EXTENSION_SOURCES)
	@$(call need_cargo,$@)
	$(MAKE) build-sqlite

need_cargo = command -v $(CARGO) >/dev/null 2>&1 || { echo "$(1) is missing or older than its sources, and there is no \
$(CARGO) here: run \`make build build-client build-lld build-sqlite\` as the user who has Rust's toolchain, then this again" >&2; exit 1; }

# Where things go, packaged or not.
BIN := $(DESTDIR)$(PREFIX)/bin
LIB := $(DESTDIR)$(PREFIX)/lib
MAN := $(DESTDIR)$(PREFIX)/share/man
BASH := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSH := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
FISH := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
HELPERS := $(if $(MOUNT_HELPER_DIR),$(addprefix $(DESTDIR)$(MOUNT_HELPER_DIR)/,mount.fuse.fstitch mount.fstitch))
CALLS := pg_open pg_use pg_create pg_depend pg_engage pg_disengage pg_engage_fd pg_disengage_fd pg_sync pg_close
LLD_CALLS := lld_error lld_format lld_open lld_close lld_block_size lld_flush lld_checkpoint lld_clean lld_check lld_space lld_info \
	lld_counters lld_new_list lld_delete_list lld_next_list lld_new_block lld_new_block_after lld_new_block_at \
	lld_delete_block lld_read lld_write lld_read_at lld_write_at lld_block_at lld_delete_range lld_next_at lld_block_after \
	lld_block_before lld_list_len lld_begin lld_end lld_end_durable lld_abort lld_unit_new_list lld_unit_delete_list \
	lld_unit_new_block lld_unit_new_block_after lld_unit_new_block_at lld_unit_delete_block lld_unit_read lld_unit_write \
	lld_unit_read_at lld_unit_write_at lld_unit_block_at lld_unit_delete_range lld_unit_next_at lld_unit_block_after \
	lld_unit_block_before lld_unit_list_len lld_volume_create lld_volume_resize lld_volume_remove lld_volume_list \
	lld_volume_open lld_volume_close lld_volume_size lld_volume_pread lld_volume_pwrite lld_volume_trim lld_volume_flush \
	lld_unit_pread lld_unit_pwrite lld_unit_trim

install-client: $(LIBRARY)
	install -d $(LIB)/pkgconfig $(DESTDIR)$(PREFIX)/include $(MAN)/man3
	install -m 755 $(LIBRARY) $(LIB)/libpatchgroup.so.1
	$(STRIP) --strip-unneeded $(LIB)/libpatchgroup.so.1
	ln -sf libpatchgroup.so.1 $(LIB)/libpatchgroup.so
	install -m 644 $(LIBRARY:.so=.a) $(LIB)/libpatchgroup.a
	$(STRIP) --strip-debug $(LIB)/libpatchgroup.a
	install -m 644 $(CLIENT)/patchgroup.h $(DESTDIR)$(PREFIX)/include/patchgroup.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)|" \
		$(CLIENT)/patchgroup.pc.in > $(LIB)/pkgconfig/patchgroup.pc
	install -m 644 $(CLIENT)/patchgroup.3 $(MAN)/man3/patchgroup.3
	@for call in $(CALLS); do echo ".so man3/patchgroup.3" > $(MAN)/man3/$$call.3; done
	@$(learn_library)

install-lld: $(LLD_LIBRARY)
	install -d $(LIB)/pkgconfig $(DESTDIR)$(PREFIX)/include $(MAN)/man3
	install -m 755 $(LLD_LIBRARY) $(LIB)/libfstitch_lld.so.0
	$(STRIP) --strip-unneeded $(LIB)/libfstitch_lld.so.0
	ln -sf libfstitch_lld.so.0 $(LIB)/libfstitch_lld.so
	install -m 644 $(LLD_LIBRARY:.so=.a) $(LIB)/libfstitch_lld.a
	$(STRIP) --strip-debug $(LIB)/libfstitch_lld.a
	install -m 644 $(LLD)/fstitch_lld.h $(DESTDIR)$(PREFIX)/include/fstitch_lld.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)|" \
		$(LLD)/fstitch_lld.pc.in > $(LIB)/pkgconfig/fstitch_lld.pc
	install -m 644 $(LLD)/fstitch_lld.3 $(MAN)/man3/fstitch_lld.3
	@for call in $(LLD_CALLS); do echo ".so man3/fstitch_lld.3" > $(MAN)/man3/$$call.3; done
	@$(learn_library)

install-sqlite: $(EXTENSION)
	install -d $(LIB)/sqlite3
	install -m 755 $(EXTENSION) $(LIB)/sqlite3/fstitch_lld_sqlite.so
	$(STRIP) --strip-unneeded $(LIB)/sqlite3/fstitch_lld_sqlite.so

# Programs find a new library when the linker's cache knows it. A package does that on the machine where it is unpacked. Of two that make
# the cache at the same moment one fails, so those who install at once take turns.
learn_library = if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then PATH="$$PATH:/usr/sbin:/sbin"; \
	turn=$$(command -v flock >/dev/null && echo flock /etc); $$turn ldconfig; fi

install: $(PROGRAM) install-client install-lld install-sqlite
	install -d $(BIN) $(MAN)/man1 $(MAN)/man8 $(BASH) $(ZSH) $(FISH) $(dir $(HELPERS))
	install -m 755 -s --strip-program=$(STRIP) $(PROGRAM) $(BIN)/fstitch
	@for helper in $(HELPERS); do ln -sfv $(PREFIX)/bin/fstitch $$helper; done
	$(PROGRAM) man $(MAN)/man1
	mv $(MAN)/man1/mount.fuse.fstitch.8 $(MAN)/man1/mount.fstitch.8 $(MAN)/man8/
	$(PROGRAM) completions bash > $(BASH)/fstitch
	$(PROGRAM) completions zsh > $(ZSH)/_fstitch
	$(PROGRAM) completions fish > $(FISH)/fstitch.fish
	@$(if $(HELPERS),:,echo "no mount helper was installed below $(PREFIX): MOUNT_HELPER_DIR=/sbin installs one")

uninstall:
	rm -f $(BIN)/fstitch $(HELPERS)
	rm -f $(MAN)/man1/fstitch.1 $(MAN)/man1/fstitch-*.1 $(MAN)/man8/mount.fuse.fstitch.8 $(MAN)/man8/mount.fstitch.8
	rm -f $(BASH)/fstitch $(ZSH)/_fstitch $(FISH)/fstitch.fish
	rm -f $(LIB)/libpatchgroup.so.1 $(LIB)/libpatchgroup.so $(LIB)/libpatchgroup.a $(LIB)/pkgconfig/patchgroup.pc
	rm -f $(LIB)/sqlite3/fstitch_lld_sqlite.so
	rm -f $(DESTDIR)$(PREFIX)/include/patchgroup.h $(MAN)/man3/patchgroup.3 $(CALLS:%=$(MAN)/man3/%.3)
	rm -f $(LIB)/libfstitch_lld.so.0 $(LIB)/libfstitch_lld.so $(LIB)/libfstitch_lld.a $(LIB)/pkgconfig/fstitch_lld.pc
	rm -f $(DESTDIR)$(PREFIX)/include/fstitch_lld.h $(MAN)/man3/fstitch_lld.3 $(LLD_CALLS:%=$(MAN)/man3/%.3)
	@$(learn_library)

clean:
	$(CARGO) clean
