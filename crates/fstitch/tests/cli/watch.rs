//! `graph` and `trace` on real mounts. What it prevents: output that programs cannot read, a recording that is lost with an interrupt
//! or an unmount, and one that outlives its client.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Mounted, PROGRAM, Place, Ran, fstitch, needs, run};

#[track_caller]
fn json(ran: Ran) -> Value {
    serde_json::from_str(&ran.ok()).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap()
}

fn sync(at: &Path) {
    File::open(at).unwrap().sync_all().unwrap();
}

/// A mount that writes nothing by itself for a while.
fn mount(place: &Place, format: &str) -> Option<(Mounted, String, String)> {
    let (image, at) = (place.text("a.img"), place.directory("m"));
    fstitch(&format!("mkfs {format} -q {image} 16M")).ok();
    let mounted = Mounted::new("--write-back-age 600s -o commit=600", &image, &at)?;
    Some((mounted, image, at))
}

/// Waits until something is so.
#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it never came to be so");
}

/// A recording under way.
fn record(place: &Place, options: &str, at: &str) -> (Child, String) {
    let trace = place.text("trace");
    let line = format!("trace record {at} -o {trace} {options}");
    let child = Command::new(PROGRAM).args(line.split_whitespace()).stdout(Stdio::piped()).spawn().unwrap();
    // The file is made when the daemon has begun.
    until(|| Path::new(&trace).exists());
    (child, trace)
}

fn end(child: Child) -> Ran {
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_graph_says_what_waits_and_why() {
    let place = Place::new();
    let Some((mounted, image, at)) = mount(&place, "ext2") else { return };
    for n in 0..8 {
        fs::create_dir(mounted.path().join(format!("d{n}"))).unwrap();
        fs::write(mounted.path().join(format!("d{n}/f")), [n; 3000]).unwrap();
    }
    let graph = json(fstitch(&format!("graph --json {at}")));
    let blocks = list(&graph, "blocks");
    assert!(blocks.len() > 10 && graph["dirty_blocks"] == blocks.len(), "{graph}");
    let patches: Vec<u64> = blocks
        .iter()
        .flat_map(|block| list(block, "patches"))
        .chain(list(&graph, "empties"))
        .map(|patch| patch["patch"].as_u64().unwrap())
        .collect();
    assert_eq!(graph["patches"], patches.len(), "all are shown");
    for edge in list(&graph, "edges") {
        for end in ["after", "before"] {
            assert!(patches.contains(&edge[end].as_u64().unwrap()), "{edge}");
        }
    }
    // A directory's new entry waits for the inode that it names.
    let waits = |block: &&Value| block["kind"] == "directory" && block["why"]["kind"] == "inode";
    let waiting = blocks.iter().find(waits).unwrap_or_else(|| panic!("{graph}"));
    assert_eq!(waiting["why"]["cause"], "patch");
    let said = fstitch(&format!("graph {image}")).ok();
    let (before, of) = (&waiting["why"]["before"], &waiting["why"]["block"]);
    assert!(said.contains(&format!("waits for patch {before} of block {of} (inode)")), "{said}");
    let some = json(fstitch(&format!("graph --json --limit 3 {at}")));
    assert_eq!(list(&some, "blocks").len(), 3);
    assert_eq!(some["left_out"]["blocks"], blocks.len() - 3);
    let drawn = fstitch(&format!("graph --dot {at}")).ok();
    assert_eq!(drawn.matches("subgraph cluster_").count(), blocks.len());
    assert_eq!(drawn.matches(" -> ").count(), list(&graph, "edges").len());
    if needs("dot") {
        fs::write(place.at("graph.dot"), drawn).unwrap();
        run("dot", ["-Tsvg", &place.text("graph.dot")]).ok();
    }
    sync(mounted.path());
    assert!(list(&json(fstitch(&format!("graph --json {at}"))), "blocks").is_empty());
    mounted.end();
}

#[test]
fn a_graph_tells_of_transactions() {
    let place = Place::new();
    let Some((mounted, _, at)) = mount(&place, "ext3") else { return };
    fs::create_dir(mounted.path().join("d")).unwrap();
    let graph = json(fstitch(&format!("graph --json {at}")));
    let running = &graph["journals"][0]["running"];
    assert!(running["blocks"].as_u64().unwrap() > 1, "{graph}");
    let open = |block: &&Value| block["why"]["cause"] == "transaction";
    let open = list(&graph, "blocks").iter().find(open).unwrap_or_else(|| panic!("{graph}"));
    assert_eq!(open["why"]["sequence"], running["sequence"]);
    let said = fstitch(&format!("graph {at}")).ok();
    assert!(said.contains("takes changes") && said.contains("is not closed"), "{said}");
    sync(mounted.path());
    let said = fstitch(&format!("graph {at}")).ok();
    assert!(said.contains("stable, on its way home"), "{said}");
    mounted.end();
}

#[test]
fn a_recording_ends_with_an_interrupt_and_is_whole() {
    let place = Place::new();
    let Some((mounted, _, at)) = mount(&place, "ext2") else { return };
    let (child, trace) = record(&place, "", &at);
    fstitch(&format!("trace record {at} -o {}", place.text("other"))).refused(1, "somebody else records");
    fs::write(mounted.path().join("a"), [7; 50_000]).unwrap();
    sync(mounted.path());
    fs::write(mounted.path().join("b"), "later").unwrap();
    run("kill", ["-INT", &child.id().to_string()]).ok();
    let said = end(child).ok();
    assert!(said.starts_with("recorded ") && !said.contains("missing"), "{said}");
    let shown = json(fstitch(&format!("trace show --json {trace}")));
    let summary = &shown["summary"];
    assert_eq!((&summary["lost"], &summary["poisoned"]), (&Value::from(0), &Value::from(false)));
    let epochs = list(&shown, "epochs");
    assert!(epochs.len() > 1 && summary["epochs"] == epochs.len(), "{shown}");
    let data: u64 = epochs.iter().filter_map(|epoch| epoch["kinds"]["data"].as_u64()).sum();
    assert!(data >= 49, "{shown}");
    // The inode is written after the contents that it points at.
    let waited: u64 = epochs.iter().map(|epoch| epoch["waited_count"].as_u64().unwrap()).sum();
    assert!(waited > 0 && summary["blocks_waited"] == waited, "{shown}");
    assert!(summary["patches_left"].as_u64().unwrap() > 0, "what came after the sync is not stable");
    // What the trace says is left is what the graph has.
    assert_eq!(summary["patches_left"], json(fstitch(&format!("graph --json {at}")))["patches"]);
    let human = fstitch(&format!("trace show {trace}")).ok();
    assert!(human.contains("waited: block") && human.contains("\nsummary\n"), "{human}");
    // It is over: another one may begin.
    fstitch(&format!("trace record {at} --seconds 1 -o {}", place.text("other"))).ok();
    mounted.end();
}

#[test]
fn a_recording_ends_with_the_mount() {
    let place = Place::new();
    let Some((mounted, _, at)) = mount(&place, "ext2") else { return };
    let (child, trace) = record(&place, "", &at);
    fs::write(mounted.path().join("a"), [7; 50_000]).unwrap();
    mounted.end();
    let said = end(child).ok();
    assert!(said.contains("it ended because the volume has been unmounted"), "{said}");
    let summary = &json(fstitch(&format!("trace show --json {trace}")))["summary"];
    assert!(summary["blocks_written"].as_u64().unwrap() > 49, "what the unmount wrote is in it: {summary}");
    assert_eq!(summary["patches_left"], 0);
}

#[test]
fn a_client_that_was_killed_records_no_more() {
    let place = Place::new();
    let Some((mounted, _, at)) = mount(&place, "ext2") else { return };
    let (mut child, _) = record(&place, "", &at);
    child.kill().unwrap();
    child.wait().unwrap();
    let other = place.text("other");
    until(|| fstitch(&format!("trace record {at} --seconds 0 -o {other}")).code == 0);
    mounted.end();
}

#[test]
fn what_is_no_mount_and_no_trace_is_refused() {
    let place = Place::new();
    let image = place.volume("a.img");
    fstitch(&format!("graph {image}")).refused(1, "no fstitch mount answers");
    fstitch(&format!("trace record {image} -o {}", place.text("t"))).refused(1, "no fstitch mount answers");
    assert!(!place.at("t").exists(), "no file is left");
    fstitch(&format!("trace show {image}")).refused(1, "reading");
    fs::write(place.at("t"), "{}\n").unwrap();
    fstitch(&format!("trace show {}", place.text("t"))).refused(1, "is no trace");
    fstitch(&format!("graph --limit 0 {image}")).refused(2, "--limit");
}
