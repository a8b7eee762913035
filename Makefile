# The commands of this repository. `make demo` and `make test` install what is missing and then do the work.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Where cargo puts what it builds, so that the targets below find it.
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)

.PHONY: demo test install uninstall build proofs clean

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

# The long proofs: suites, real trees, the kernel's own driver, 200 kills. Takes an hour or more.
proofs: build
	@scripts/setup.sh proofs
	@FSTITCH=$(TARGET)/release/fstitch scripts/all-proofs.sh

install: build
	install -D -m 755 $(TARGET)/release/fstitch $(DESTDIR)$(PREFIX)/bin/fstitch
	install -d $(DESTDIR)/sbin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	ln -sf $(PREFIX)/bin/fstitch $(DESTDIR)/sbin/mount.fuse.fstitch
	ln -sf $(PREFIX)/bin/fstitch $(DESTDIR)/sbin/mount.fstitch
	$(TARGET)/release/fstitch man $(DESTDIR)$(PREFIX)/share/man/man1
	$(TARGET)/release/fstitch completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fstitch

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/fstitch $(DESTDIR)/sbin/mount.fuse.fstitch $(DESTDIR)/sbin/mount.fstitch
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/fstitch.1 $(DESTDIR)$(PREFIX)/share/man/man1/fstitch-*.1
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fstitch

clean:
	$(CARGO) clean
