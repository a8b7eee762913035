# The commands of this repository. `make demo` and `make test` install what is missing and then do the work.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Where cargo puts what it builds, so that the targets below find it.
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# How libpatchgroup is built; `dev` is quicker to build.
PROFILE ?= release
BUILT := $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
CLIENT := crates/fstitch-client-c
# What is raced: what `make optimized` makes, or with PLAIN=1 a plain release build, which takes neither root nor FUSE.
RACED := $(TARGET)/$(if $(PLAIN),release,optimized)/fstitch
# What is installed: a plain release build, or with OPTIMIZED=1 what `make optimized` makes.
PROGRAM := $(TARGET)/$(if $(OPTIMIZED),optimized,release)/fstitch

.PHONY: demo test install uninstall build optimized build-client install-client proofs studies bench clean

# Makes an ext2 image, mounts it, unpacks a tree, kills the mount in mid-write, checks, and tells what it saw.
demo: build
	@scripts/setup.sh demo
	@$(TARGET)/release/fstitch demo

# Everything that must pass before a change lands, and once more that nothing was skipped in silence.
test:
	@scripts/setup.sh test
	$(CARGO) xtask ci

build:
	@scripts/setup.sh build
	$(CARGO) build --release --locked -p fstitch

# The program 10 to 15 % faster: built, watched at work, and built again for that. Ten minutes.
optimized:
	@scripts/setup.sh optimized
	@scripts/optimized.sh $(TARGET)/optimized/fstitch

# The long proofs: suites, real trees, the kernel's own driver, 200 kills. Takes an hour or more.
proofs: build
	@scripts/setup.sh proofs
	@FSTITCH=$(TARGET)/release/fstitch scripts/all-proofs.sh

# Real programs, what ordering buys them and what a crash leaves of them: the numbers of docs/studies.md. Half an hour.
studies: build build-client
	@scripts/setup.sh studies
	@FSTITCH=$(TARGET)/release/fstitch studies/run.sh

# Races the program against the kernel's file systems and others, and writes docs/benchmarks.md. Forty minutes at most.
bench: $(if $(PLAIN),build,optimized)
	@scripts/setup.sh bench
	@$(RACED) bench --time 1620s --report docs/benchmarks.md --readme README.md

# What C programs need to order their changes; `pip install ./python` is the same for Python.
build-client:
	@scripts/setup.sh build
	$(CARGO) build --profile $(PROFILE) --locked -p fstitch-client-c

install-client: build-client
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	install -m 755 $(BUILT)/libpatchgroup.so $(DESTDIR)$(PREFIX)/lib/libpatchgroup.so.1
	ln -sf libpatchgroup.so.1 $(DESTDIR)$(PREFIX)/lib/libpatchgroup.so
	install -m 644 $(BUILT)/libpatchgroup.a $(DESTDIR)$(PREFIX)/lib/libpatchgroup.a
	install -m 644 $(CLIENT)/patchgroup.h $(DESTDIR)$(PREFIX)/include/patchgroup.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)|" \
		$(CLIENT)/patchgroup.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/patchgroup.pc

install: $(if $(OPTIMIZED),optimized,build) install-client
	install -D -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/fstitch
	install -d $(DESTDIR)/sbin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	ln -sf $(PREFIX)/bin/fstitch $(DESTDIR)/sbin/mount.fuse.fstitch
	ln -sf $(PREFIX)/bin/fstitch $(DESTDIR)/sbin/mount.fstitch
	$(PROGRAM) man $(DESTDIR)$(PREFIX)/share/man/man1
	$(PROGRAM) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fstitch

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/fstitch $(DESTDIR)/sbin/mount.fuse.fstitch $(DESTDIR)/sbin/mount.fstitch
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/fstitch.1 $(DESTDIR)$(PREFIX)/share/man/man1/fstitch-*.1
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fstitch
	rm -f $(DESTDIR)$(PREFIX)/lib/libpatchgroup.so.1 $(DESTDIR)$(PREFIX)/lib/libpatchgroup.so
	rm -f $(DESTDIR)$(PREFIX)/lib/libpatchgroup.a $(DESTDIR)$(PREFIX)/lib/pkgconfig/patchgroup.pc
	rm -f $(DESTDIR)$(PREFIX)/include/patchgroup.h

clean:
	$(CARGO) clean
