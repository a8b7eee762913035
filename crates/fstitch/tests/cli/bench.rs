//! The race runs, measures everybody it is asked to, says what it could not, and writes its report.

use crate::harness::{PROGRAM, Place, fstitch, needs, needs_root, run};

/// Races in a directory of the test, and returns the results.
fn race(place: &Place, more: &str) -> serde_json::Value {
    let at = place.text("");
    let line = format!(
        "bench --quick --repetitions 1 --no-tables --image-size 256M --media memory --memory {at} --json {more}"
    );
    serde_json::from_str(&run(PROGRAM, line.split_whitespace()).ok()).unwrap()
}

/// The seconds of a contender's phase.
fn seconds(results: &serde_json::Value, contender: &str, phase: &str) -> Option<f64> {
    let cells = results["cells"].as_array().unwrap();
    let found = cells.iter().find(|cell| cell["contender"] == contender && cell["phase"] == phase);
    found.map(|cell| cell["wall_s"].as_f64().unwrap())
}

#[test]
fn a_race_in_process_ends_with_a_report() {
    if !needs("mke2fs") {
        return;
    }
    let place = Place::new();
    let report = place.text("report.md");
    let more = format!("--only small,postmark --contenders in-soft,in-async,in-full --report {report}");
    let results = race(&place, &more);
    for contender in ["in-soft", "in-async", "in-full"] {
        for phase in ["create", "write 4 KiB", "unlink", "all"] {
            assert!(
                seconds(&results, contender, phase).is_some_and(|wall| wall > 0.0),
                "{contender} {phase}"
            );
        }
    }
    let soft =
        results["cells"].as_array().unwrap().iter().find(|cell| cell["phase"] == "write 4 KiB").unwrap();
    assert!(
        soft["device"]["bytes_written"].as_u64().unwrap() >= 2_000 * 4096,
        "the medium saw the blocks: {soft}"
    );
    let text = std::fs::read_to_string(&report).unwrap();
    assert!(text.contains("memory: small, create: in-soft / in-async"), "{text}");
    assert!(std::fs::read_to_string(place.text("report/small.svg")).unwrap().contains("in-full"));
    // The same report from the numbers alone.
    let again = place.text("again.md");
    fstitch(&format!("bench --from {} --report {again}", place.text("report/results.json"))).ok();
    let same = std::fs::read_to_string(&again).unwrap().replace("](again/", "](report/");
    assert_eq!(same, text);
}

#[test]
fn a_race_with_mounts_counts_what_reaches_devices() {
    if !needs("mke2fs") || !needs_root() {
        return;
    }
    let place = Place::new();
    const WITH_MEDIUM: [&str; 7] =
        ["fuse-soft", "fuse-bpfs", "fuse-ufs2", "in-ufs2", "fuse-waffle", "in-waffle", "kernel-ext2"];
    const WITHOUT: [&str; 3] = ["fuse-memory", "fuse-bpfs-memory", "tmpfs"];
    let contenders = [&WITH_MEDIUM[..], &WITHOUT].concat();
    let results = race(&place, &format!("--only creates --contenders {}", contenders.join(",")));
    for contender in contenders {
        assert!(seconds(&results, contender, "with fsync").is_some(), "{contender}: {}", results["gaps"]);
    }
    for cell in results["cells"].as_array().unwrap() {
        let has_medium = WITH_MEDIUM.iter().any(|name| cell["contender"] == *name);
        assert_eq!(cell["device"].is_object(), has_medium, "{cell}");
    }
}

#[test]
fn a_race_refuses_what_it_does_not_know() {
    fstitch("bench --only nothing").refused(2, "no workload is called `nothing`: see `fstitch bench --list`");
    fstitch("bench --contenders ext5").refused(2, "no contender is called `ext5`");
    fstitch("bench --media tape").refused(2, "no medium is called `tape`");
    assert!(fstitch("bench --list").ok().contains("kernel-ext3-journal"));
    let listed: serde_json::Value = serde_json::from_str(&fstitch("bench --list --json").ok()).unwrap();
    let soft = listed["contenders"].as_array().unwrap().iter().find(|known| known["name"] == "fuse-soft");
    assert_eq!(soft.unwrap()["survives_a_power_cut"], true);
}

/// A table that is measured in a process of its own, and nothing else.
#[test]
fn tables_are_made_one_by_one() {
    let place = Place::new();
    let at = place.text("");
    let line = format!("bench --quick --tables large --disk {at} --memory {at} --json");
    let results: serde_json::Value = serde_json::from_str(&fstitch(&line).ok()).unwrap();
    assert_eq!(results["gaps"].as_array().unwrap().len(), 0, "{}", results["gaps"]);
    assert_eq!(results["cells"].as_array().unwrap().len(), 0, "nobody races");
    let tables = results["tables"].as_array().unwrap();
    let names: Vec<&str> = tables.iter().map(|table| table["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["lld large", "lld minix large file"]);
    let about = tables[0]["about"].as_str().unwrap();
    assert_eq!(about.contains("A DEBUG BUILD"), cfg!(debug_assertions), "{about}");
    for row in tables[0]["rows"].as_array().unwrap() {
        let number = row[1].as_str().unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
        assert!(number.is_finite() && number > 0.0, "{row}");
    }
}

/// What is measured alone goes into the report of a whole run, whose other parts stay.
#[test]
fn a_report_takes_newer_tables() {
    let place = Place::new();
    let at = place.text("");
    let line = format!("bench --quick --tables cleaning --disk {at} --memory {at} --json");
    let results = fstitch(&line).ok();
    let (from, page) = (place.text("results.json"), place.text("report.md"));
    std::fs::write(&from, &results).unwrap();
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    let title = results["tables"][0]["title"].as_str().unwrap();
    let rest = "## The race\n\nStays.\n\n## The papers' tables\n";
    std::fs::write(&page, format!("# Benchmarks\n\n### {title}\n\nOlder.\n\n{rest}")).unwrap();
    fstitch(&format!("bench --from {from} --update {page}")).ok();
    let new = std::fs::read_to_string(&page).unwrap();
    assert!(new.contains("| 95 % |") && new.contains("Of a run of its own: "), "{new}");
    assert!(!new.contains("Older.") && new.ends_with(rest), "{new}");
    std::fs::write(&page, "# Benchmarks\n").unwrap();
    fstitch(&format!("bench --from {from} --update {page}"))
        .refused(1, "this is no report of `fstitch bench");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "# Benchmarks\n", "nothing is written then");
}

#[test]
fn tables_that_nobody_has_are_refused() {
    let said = "no table's name contains `tape`: there are patches per block, ";
    fstitch("bench --tables tape").refused(2, said);
    fstitch("bench --tables lld --no-tables").refused(2, "cannot be used with");
    assert!(fstitch("bench --list").ok().contains("lld served"));
}
