//! Logical disks as their users have them. What it prevents: output that programs cannot read, a disk that is overwritten unasked, damage
//! that nobody hears of, and a server that has answered what is not there after it was killed.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{PROGRAM, Place, fstitch, needs, run};

#[track_caller]
fn json(line: &str) -> Value {
    serde_json::from_str(&fstitch(line).ok()).unwrap()
}

#[test]
fn volumes_are_made_and_found() {
    let place = Place::new();
    let disk = place.text("d.lld");
    let made = json(&format!("lld format --json {disk} 64M"));
    assert_eq!((&made["block_size_bytes"], &made["segments"]), (&Value::from(4096), &Value::from(127)));
    fstitch(&format!("lld format {disk} 64M"))
        .refused(1, "seems to hold a logical disk: nothing was written");
    fstitch(&format!("mkfs ext2 {disk}")).refused(1, "a logical disk");
    fstitch(&format!("lld format -b 1000 {disk} 64M")).refused(2, "a power of two");
    for (name, size) in [("b", "1G"), ("a", "16M")] {
        fstitch(&format!("lld volume create {disk} {name} {size}")).ok();
    }
    fstitch(&format!("lld volume create {disk} a 1M")).refused(1, "volume a of");
    fstitch(&format!("lld volume resize {disk} c 1M")).refused(1, "volume c of");
    fstitch(&format!("lld volume resize {disk} a 8M")).ok();
    let volumes = json(&format!("lld volume list --json {disk}"));
    let names: Vec<_> = volumes.as_array().unwrap().iter().map(|v| (&v["name"], &v["size_bytes"])).collect();
    assert_eq!(
        names,
        [(&Value::from("a"), &Value::from(8 << 20)), (&Value::from("b"), &Value::from(1 << 30))]
    );
    fstitch(&format!("lld volume remove {disk} b")).ok();
    let info = json(&format!("lld info --json {disk}"));
    assert_eq!(info["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(info["behind_checkpoint"]["chunks"], 0);
    assert!(fstitch(&format!("lld info {disk}")).ok().contains("a: 8.0 MiB, of which 0 bytes is stored"));
    assert!(fstitch(&format!("lld check {disk}")).ok().contains("nothing is wrong"));
}

#[test]
fn a_disk_that_compresses_says_so() {
    let place = Place::new();
    let disk = place.text("d.lld");
    fstitch(&format!("lld format --compress zip {disk} 64M")).refused(2, "`none` or `lz4`");
    let made = json(&format!("lld format --json --compress lz4 {disk} 64M"));
    assert_eq!((&made["compression"], &made["block_size_bytes"]), (&Value::from("lz4"), &Value::from(4096)));
    assert_eq!(json(&format!("lld info --json {disk}"))["compression"], "lz4");
    fstitch(&format!("lld volume create {disk} a 16M")).ok();
    assert!(fstitch(&format!("lld check {disk}")).ok().contains("nothing is wrong"));
}

#[test]
fn what_lies_on_a_disk_is_shown() {
    let place = Place::new();
    let disk = place.text("d.lld");
    fstitch(&format!("lld format {disk} 64M")).ok();
    fstitch(&format!("lld volume create {disk} a 16M")).ok();
    let shown = fstitch(&format!("lld dump --records {disk}")).ok();
    assert!(
        shown.contains("segment 0 at block 8") && shown.contains("NewList { list: 2, sparse: true }"),
        "{shown}"
    );
    let lines = fstitch(&format!("lld dump --json {disk}")).ok();
    let segments: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(segments.len(), 127);
    // The chunks of the log are numbered without a gap, each linked to the one before.
    let chunks: Vec<&Value> =
        segments.iter().flat_map(|segment| segment["chunks"].as_array().unwrap()).collect();
    assert!(chunks.len() > 2);
    for (chunk, number) in chunks.iter().zip(1..) {
        assert_eq!(chunk["number"], number);
    }
    for pair in chunks.windows(2) {
        assert_eq!(pair[0]["sum"], pair[1]["link"]);
    }
    let one = fstitch(&format!("lld dump --json --segment 0 {disk}")).ok();
    assert_eq!(lines.lines().next(), one.lines().next());
    fstitch(&format!("lld dump --segment 127 {disk}")).refused(2, "there are 127");
    fstitch(&format!("lld stats {disk}")).refused(1, "is no socket");
}

#[test]
fn a_server_says_what_it_does_and_changes_its_volumes() {
    let place = Place::new();
    let (disk, control) = (place.text("d.lld"), place.text("c"));
    fstitch(&format!("lld format {disk} 64M")).ok();
    let server = Server::new(&place);
    fstitch(&format!("lld volume create {control} a 16M")).ok();
    fstitch(&format!("lld volume create {control} b 1M")).ok();
    fstitch(&format!("lld volume create {control} a 1M")).refused(1, "volume a");
    fstitch(&format!("lld volume resize {control} a 32M")).ok();
    fstitch(&format!("lld volume remove {control} b")).ok();
    fstitch(&format!("lld volume remove {control} b")).refused(1, "volume b");
    let volumes = json(&format!("lld volume list --json {control}"));
    assert_eq!(volumes.as_array().unwrap().len(), 1);
    assert_eq!(volumes[0]["size_bytes"], 32 << 20);
    let before = json(&format!("lld stats --json {control}"));
    let mut units = Control::new(&place);
    units.begin();
    let ended = units.begin();
    let open = json(&format!("lld stats --json {control}"));
    assert_eq!(open["open_units"], 2);
    assert_eq!(units.ask(&format!("{{\"end\":{{\"token\":\"{ended}\"}}}}")), "done");
    let after = json(&format!("lld stats --json {control}"));
    let grown = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    assert_eq!((grown("units"), grown("durable_units")), (1, 1));
    assert!(after["written_bytes"].as_u64() > after["client_bytes"].as_u64());
    assert!(
        fstitch(&format!("lld stats {control}"))
            .ok()
            .contains("open now             1 units with 0 versions")
    );
    drop(server);
    fstitch(&format!("lld stats {control}")).refused(1, "Connection refused");
    assert_eq!(json(&format!("lld volume list --json {disk}"))[0]["size_bytes"], 32 << 20);
}

#[test]
fn what_is_no_logical_disk_is_refused_and_damage_is_said() {
    let place = Place::new();
    let (disk, volume) = (place.text("d.lld"), place.volume("v.img"));
    fstitch(&format!("lld info {volume}")).refused(1, "no logical disk");
    fstitch(&format!("lld format {disk} 64M")).ok();
    fstitch(&format!("lld volume create {disk} a 16M")).ok();
    // The catalogue's block: the only contents that there are.
    let bytes = fs::read(&disk).unwrap();
    let at = bytes.windows(8).rposition(|window| window == b"FSLDVOLS").unwrap();
    let mut file = OpenOptions::new().write(true).open(&disk).unwrap();
    file.seek(SeekFrom::Start(u64::try_from(at).unwrap() + 2000)).unwrap();
    file.write_all(&[1]).unwrap();
    drop(file);
    let checked = fstitch(&format!("lld check {disk}"));
    assert_eq!(checked.code, 1);
    assert!(checked.out.contains("[contents] the contents of block"), "{}", checked.out);
    assert!(fstitch(&format!("lld check --maps-only {disk}")).ok().contains("nothing is wrong"));
    fstitch(&format!("lld volume list {disk}")).refused(1, "the contents of block");
}

/// A server that is killed in the end, if it was not before.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn new(place: &Place) -> Self {
        Self::with(place, &[])
    }

    fn with(place: &Place, words: &[&str]) -> Self {
        let (disk, socket, control) = (place.text("d.lld"), place.text("s"), place.text("c"));
        let child = Command::new(PROGRAM)
            .args(["lld", "serve", &disk, "--socket", &socket, "--control", &control])
            .args(words)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self(child);
        for _ in 0..1000 {
            if UnixStream::connect(&control).is_ok() {
                return server;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not begin");
    }
}

/// A client of the control socket.
struct Control(BufReader<UnixStream>);

impl Control {
    fn new(place: &Place) -> Self {
        Self(BufReader::new(UnixStream::connect(place.at("c")).unwrap()))
    }

    fn ask(&mut self, request: &str) -> Value {
        writeln!(self.0.get_mut(), "{request}").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn begin(&mut self) -> String {
        self.ask("\"begin\"")["begun"]["token"].as_str().unwrap().to_owned()
    }
}

#[test]
fn units_over_nbd_happen_as_a_whole_and_outlive_a_kill() {
    if !needs("qemu-io") {
        return;
    }
    let place = Place::new();
    fstitch(&format!("lld format {} 64M", place.text("d.lld"))).ok();
    fstitch(&format!("lld volume create {} v 16M", place.text("d.lld"))).ok();
    let server = Server::new(&place);
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", place.text("s"));
    let inside = |token: &str| uri(&format!("v%3Faru%3D{token}"));
    let io = |commands: &[&str], uri: &str| {
        let words = commands.iter().flat_map(|command| ["-c", command]);
        let ran = run("qemu-io", ["-f", "raw"].into_iter().chain(words).chain([uri]));
        ran.code == 0 && !ran.out.contains("verification failed") && !ran.out.contains("error")
    };
    assert!(io(&["write -P 1 0 1M", "flush"], &uri("v")));
    let mut control = Control::new(&place);
    let unit = control.begin();
    assert!(io(&["write -P 2 512k 1M", "flush", "read -P 1 0 512k", "read -P 2 512k 1M"], &inside(&unit)));
    assert!(io(&["read -P 1 512k 512k", "read -P 0 1M 512k"], &uri("v")), "nobody else sees it");
    assert_eq!(control.ask(&format!("{{\"end\":{{\"token\":\"{unit}\"}}}}")), "done");
    // One that is aborted, one whose connection is lost, and one that is open when the server is killed.
    let aborted = control.begin();
    assert!(io(&["write -P 3 0 64k"], &inside(&aborted)));
    assert_eq!(control.ask(&format!("{{\"abort\":{{\"token\":\"{aborted}\"}}}}")), "done");
    assert!(!io(&["read 0 64k"], &inside(&aborted)), "the unit is gone");
    let mut other = Control::new(&place);
    let lost = other.begin();
    assert!(io(&["write -P 4 0 64k"], &inside(&lost)));
    assert!(control.ask(&format!("{{\"end\":{{\"token\":\"{lost}\"}}}}"))["failed"]["error"].is_string());
    drop(other);
    let open = control.begin();
    assert!(io(&["write -P 5 0 64k", "flush"], &inside(&open)));
    assert!(control.ask("nonsense")["failed"]["error"].as_str().unwrap().contains("not a request"));
    drop(server);
    let _server = Server::new(&place);
    assert!(io(&["read -P 1 0 512k", "read -P 2 512k 1M", "read -P 0 1536k 1M"], &uri("v")));
    assert!(!io(&["read 0 64k"], &inside(&open)));
}

#[test]
fn a_command_in_a_unit_does_all_or_nothing() {
    if !needs("qemu-io") {
        return;
    }
    let place = Place::new();
    fstitch(&format!("lld format {} 64M", place.text("d.lld"))).ok();
    fstitch(&format!("lld volume create {} v 16M", place.text("d.lld"))).ok();
    let _server = Server::new(&place);
    let (socket, control) = (place.text("s"), place.text("c"));
    let write = |byte: u8, then: &str| {
        let script = format!(
            "qemu-io -f raw -c 'write -P {byte} 0 64k' \"nbd+unix:///v%3Faru%3D$FSTITCH_ARU?socket={socket}\" && {then}"
        );
        run(PROGRAM, ["lld", "unit", &control, "sh", "-c", &script])
    };
    let reads = |byte: u8| {
        let read = format!("read -P {byte} 0 64k");
        let ran = run("qemu-io", ["-f", "raw", "-c", &read, &format!("nbd+unix:///v?socket={socket}")]);
        !ran.ok().contains("verification failed")
    };
    write(1, "true").ok();
    assert!(reads(1));
    write(2, "exit 3").refused(1, "nothing has happened");
    assert!(reads(1));
    run(PROGRAM, ["lld", "unit", &control, "/no/such/program"]).refused(1, "/no/such/program");
}

#[test]
fn a_disk_that_is_served_for_reading_is_not_changed() {
    if !needs("qemu-io") {
        return;
    }
    let place = Place::new();
    fstitch(&format!("lld format {} 64M", place.text("d.lld"))).ok();
    fstitch(&format!("lld volume create {} v 16M", place.text("d.lld"))).ok();
    let before = fs::read(place.at("d.lld")).unwrap();
    let server = Server::with(&place, &["--read-only"]);
    let uri = format!("nbd+unix:///v?socket={}", place.text("s"));
    let read = run("qemu-io", ["-f", "raw", "-r", "-c", "read -P 0 0 64k", &uri]).ok();
    assert!(!read.contains("verification failed"), "{read}");
    assert_ne!(run("qemu-io", ["-f", "raw", "-c", "write 0 64k", &uri]).code, 0);
    drop(server);
    assert!(fs::read(place.at("d.lld")).unwrap() == before);
}
