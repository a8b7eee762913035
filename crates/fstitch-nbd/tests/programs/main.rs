//! Clients that others have written: they find what both sides of our own tests would misunderstand alike.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::MemDevice;
use fstitch_nbd::{DeviceExport, Export, MemExport, Options, Server, Single};

/// Whether a program is installed; if not, says that the test is skipped.
fn needs(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        println!("skipped: {program} is not installed");
    }
    found.status.success()
}

/// A server at a socket in a directory of its own.
struct Served {
    place: tempfile::TempDir,
    server: Server,
}

impl Served {
    fn new(export: Arc<dyn Export>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let server = Server::new(Arc::new(Single(export)), Options::default()).unwrap();
        server.listen_unix(place.path().join("socket")).unwrap();
        Self { place, server }
    }

    /// Runs a script with `$U` as the server's address, here.
    #[track_caller]
    fn run(&self, script: &str) -> String {
        let address = format!("nbd+unix:///?socket={}", self.place.path().join("socket").display());
        let ran = Command::new("sh")
            .args(["-euc", script])
            .env("U", address)
            .current_dir(self.place.path())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&ran.stdout), text(&ran.stderr));
        assert!(ran.status.success(), "{script}\n{out}{err}");
        out
    }

    /// Runs a script of nbdsh, which has the connection in `h`.
    #[track_caller]
    fn nbdsh(&self, name: &str, script: &str) {
        std::fs::write(self.place.path().join(name), script).unwrap();
        // The distribution's Python has the distribution's modules, and another one may come first.
        self.run(&format!(
            "PATH=/usr/bin:$PATH nbdsh --base-allocation -u \"$U\" -c 'exec(open(\"{name}\").read())'"
        ));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let stopped = self.server.stop(Duration::from_secs(30));
        if !std::thread::panicking() {
            assert_eq!((stopped.cut, self.server.stats().malformed.get()), (0, 0));
        }
    }
}

fn exports() -> [Arc<dyn Export>; 2] {
    let device = DeviceExport::new(Arc::new(MemDevice::new(4096, 4096)), 512, false).unwrap();
    [Arc::new(MemExport::new(16 << 20)), Arc::new(device)]
}

/// Bytes without a pattern, so that a piece in the wrong place is seen.
fn make_file(place: &Path, name: &str, len: u64) {
    let mut random = fstitch_core::Seed::new(len);
    let bytes: Vec<u8> = (0..len / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    std::fs::write(place.join(name), bytes).unwrap();
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    if !needs("nbdinfo") {
        return;
    }
    let served = Served::new(Arc::new(MemExport::new(5 << 20)));
    let info = served.run("nbdinfo \"$U\"");
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 5242880 (5M)",
        "base:allocation",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(info.contains(line), "{line} is missing in\n{info}");
    }
    assert!(served.run("nbdinfo --list \"$U\"").contains("sparse memory"));
    assert!(served.run("nbdinfo --map \"$U\"").contains("hole,zero"));
}

#[test]
fn nbdcopy_takes_a_file_there_and_back() {
    if !needs("nbdcopy") {
        return;
    }
    for export in exports() {
        let served = Served::new(export);
        make_file(served.place.path(), "there", 10 << 20);
        served
            .run("truncate -s 16M there; nbdcopy --flush there \"$U\"; nbdcopy \"$U\" back; cmp there back");
        served.run("nbdcopy -C 1 -R 1 \"$U\" back; cmp there back");
    }
}

#[test]
fn nbdsh_uses_every_request() {
    if !needs("nbdsh") {
        return;
    }
    let script = r"
h.pwrite(b'a' * 8192, 4096)
h.pwrite(b'b' * 512, 8192, nbd.CMD_FLAG_FUA)
assert h.pread(8192 + 512, 4096 - 512) == b'\0' * 512 + b'a' * 4096 + b'b' * 512 + b'a' * 3584
h.flush()
h.zero(512, 4096, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(1024, 4096) == b'\0' * 512 + b'a' * 512
h.trim(4096, 8192)
h.cache(4096, 0)
def seen(context, offset, extents, error):
    global found
    assert context == 'base:allocation' and error.value == 0
    found = (offset, sum(extents[::2]))
h.block_status(1 << 20, 65536, seen)
assert found == (65536, 1 << 20), found
h.set_strict_mode(h.get_strict_mode() & ~(nbd.STRICT_BOUNDS | nbd.STRICT_FLAGS))
for wrong, errno in [
    (lambda: h.pread(512, h.get_size()), 'EINVAL'),
    (lambda: h.pwrite(b'x' * 512, h.get_size()), 'ENOSPC'),
    (lambda: h.pread(512, 0, nbd.CMD_FLAG_NO_HOLE), 'EINVAL'),
]:
    try:
        wrong()
        assert False, errno
    except nbd.Error as error:
        assert error.errno == errno, error
in_flight = [h.aio_pwrite(bytes([i]) * 4096, i * 4096) for i in range(64)]
while h.aio_in_flight() > 0:
    h.poll(-1)
assert all(h.aio_command_completed(cookie) for cookie in in_flight)
assert h.pread(64 * 4096, 0) == b''.join(bytes([i]) * 4096 for i in range(64))
h.shutdown()
";
    for export in exports() {
        Served::new(export).nbdsh("all.py", script);
    }
}

#[test]
fn qemu_img_converts_and_compares() {
    if !needs("qemu-img") {
        return;
    }
    for export in exports() {
        let served = Served::new(export);
        make_file(served.place.path(), "there", 3 << 20);
        served.run(
            "truncate -s 16M there
             qemu-img convert -n -f raw -O raw there \"$U\"
             qemu-img compare -f raw -F raw there \"$U\"
             qemu-img map --output=json -f raw \"$U\" > map
             qemu-img convert -f raw -O qcow2 \"$U\" back.qcow2
             qemu-img compare -f raw -F qcow2 there back.qcow2
             qemu-img bench -f raw -w -c 2000 -d 32 -s 4096 --flush-interval=50 \"$U\"",
        );
    }
}

#[test]
fn qemu_io_reads_what_it_has_written() {
    if !needs("qemu-io") {
        return;
    }
    for export in exports() {
        let served = Served::new(export);
        let out = served.run(
            "qemu-io -f raw \"$U\" -c 'write -P 7 0 1M' -c 'aio_write -P 8 1M 1M' -c 'aio_write -P 9 2M 512' -c aio_flush \
             -c 'write -f -P 3 3M 64k' -c 'write -z -u 0 64k' -c 'write -z 128k 512' -c 'discard 256k 64k' -c flush \
             -c 'read -P 0 0 64k' -c 'read -P 7 64k 64k' -c 'read -P 8 1M 1M' -c 'read -P 9 2M 512' -c 'read -P 3 3M 64k' \
             -c 'read -P 0 128k 512'",
        );
        assert!(!out.contains("failed") && !out.contains("error"), "{out}");
    }
}

#[test]
fn fio_verifies_what_it_has_written() {
    if !needs("fio") {
        return;
    }
    if Command::new("fio").arg("--enghelp=nbd").output().is_ok_and(|help| !help.status.success()) {
        println!("skipped: this fio has no nbd");
        return;
    }
    for export in exports() {
        let served = Served::new(export);
        served.run(
            "fio --name=v --ioengine=nbd --uri=\"$U\" --rw=randrw --bs=512-64k --iodepth=32 --size=16M --verify=crc32c \
             --verify_state_save=0 --fsync=64 --randseed=1",
        );
    }
}
