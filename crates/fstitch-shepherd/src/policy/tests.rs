//! Texts of policies: what is read, and what is refused with which line.

use proptest::prelude::*;

use super::*;
use fstitch_core::BlockKind;

const INODE: Kind = Kind::Block(BlockKind::Inode);
const DATA: Kind = Kind::Block(BlockKind::Data);
const JOURNAL: Kind = Kind::Block(BlockKind::JournalCommit);

fn chain(policy: &Policy, kind: Kind, direction: Direction) -> String {
    policy.chain(kind, direction).to_string()
}

#[test]
fn kinds_know_their_places_and_names() {
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!(kind.index(), at);
        assert_eq!(Kind::of_name(kind.name()), Some(kind));
    }
}

#[test]
fn the_narrowest_table_wins() {
    let text = r#"
        [all]
        read = ["retry 1"]
        write = ["retry 2 10ms within 1s", "stop"]
        [metadata]
        read = ["retry 3"]
        [inode]
        read = ["retry 4", "read-only"]
    "#;
    let policy = Policy::parse(text).unwrap();
    let directory = Kind::Block(BlockKind::Directory);
    assert_eq!(chain(&policy, INODE, Direction::Read), "retry 4, read-only");
    assert_eq!(chain(&policy, INODE, Direction::Write), "retry 2 10ms within 1s, stop");
    assert_eq!(chain(&policy, directory, Direction::Read), "retry 3, propagate");
    assert_eq!(chain(&policy, DATA, Direction::Read), "retry 1, propagate");
    // The journal and the maps have what is said for them only.
    assert_eq!(chain(&policy, JOURNAL, Direction::Write), "propagate");
    assert_eq!(chain(&policy, Kind::Map(MapKind::Remap), Direction::Write), "propagate");
}

#[test]
fn an_empty_policy_propagates() {
    let policy = Policy::parse("").unwrap();
    assert!(Kind::ALL.into_iter().all(|kind| chain(&policy, kind, Direction::Read) == "propagate"));
}

/// Texts, the line to blame, and words of the message.
const REFUSED: &[(&str, usize, &str)] = &[
    ("[inode\nread = []", 1, "unclosed table"),
    ("[inodes]\nread = []", 1, "no kind of block `inodes`"),
    ("inode = 3", 1, "inode is a table"),
    ("description = 3", 1, "description is a string"),
    ("[inode]\nreads = []", 2, "[inode] has no `reads`"),
    ("[inode]\nread = \"retry 3\"", 2, "a chain is a list"),
    ("[inode]\nread = [\n  \"retry 3\",\n  7]", 4, "a step is a string"),
    ("[inode]\nread = [\n  \"retri 3\"]", 3, "no step `retri`"),
    ("[inode]\nread = [\"\"]", 2, "a step without a name"),
    ("[inode]\nread = [\"verify twice\"]", 2, "`verify` takes nothing, not `twice`"),
    ("[inode]\nread = [\"retry\"]", 2, "says how often"),
    ("[inode]\nread = [\"retry 0\"]", 2, "1 to 1000, not `0`"),
    ("[inode]\nread = [\"retry for-ever\"]", 2, "not `for-ever`"),
    ("[inode]\nread = [\"retry 3 10\"]", 2, "a time is written as 10ms or 2s, not `10`"),
    ("[inode]\nread = [\"retry 3 within 1h\"]", 2, "not `1h`"),
    ("[inode]\nread = [\"retry 1000 10s\"]", 2, "longer than ten minutes"),
    ("[inode]\nread = [\"retry 1000 10s within 1000s\"]", 2, "longer than ten minutes"),
    ("[inode]\nread = [\"retry 3 1s 2s\"]", 2, "without `2s`"),
    ("[inode]\nread = [\"retry 3\", \"retry 4\"]", 2, "twice in a row"),
    ("[inode]\nread = [\"stop\", \"retry 3\"]", 2, "`retry 3` after `stop` would never be reached"),
    ("[inode]\nread = [\"sanity\", \"sanity\"]", 2, "stands there twice"),
    ("[inode]\nwrite = [\"remap\", \"retry 1\", \"remap\"]", 2, "stands there twice"),
    ("[inode]\nwrite = [\"mirror\"]", 2, "says where"),
    ("[inode]\nwrite = [\"mirror here\"]", 2, "not `here`"),
    ("[inode]\nwrite = [\"mirror near 10\"]", 2, "1 to 9, not `10`"),
    ("[inode]\nwrite = [\"mirror near 1 2\"]", 2, "not `1 2`"),
    ("[inode]\nwrite = [\"parity\"]", 2, "for how many blocks"),
    ("[inode]\nwrite = [\"parity 1\"]", 2, "2 to 64, not `1`"),
    ("[inode]\nwrite = [\"repair\"]", 2, "is for reads"),
    ("[inode]\nread = [\"remap\"]", 2, "is for writes"),
    ("[inode]\nread = [\"all-disks\"]", 2, "is for writes"),
    ("[inode]\nread = [\"mirror\"]", 2, "copies that no write keeps"),
    ("[inode]\nwrite = [\"mirror far\"]", 2, "no read would look at"),
    ("[all]\nread = [\"parity\"]", 2, "parity that no write keeps"),
    ("[all]\nwrite = [\"parity 4\"]", 2, "no read would use"),
    ("[all]\nread = [\"verify\"]", 2, "sums that no write keeps (for superblock)"),
    ("[all]\nwrite = [\"verify\"]", 2, "sums that no read looks at"),
    ("[data]\nread = [\"sanity\"]", 2, "no rules by which a block of data"),
    (
        "[all]\nread = [\"full-check\"]",
        2,
        "no rules by which a block of data could be judged or repaired (for data)",
    ),
    ("[inode]\nread = [\"verify\", \"repair\"]\nwrite = [\"verify\"]", 2, "what no sum is known of"),
    ("[journal]\nwrite = [\"remap\"]", 2, "`remap` for journal-superblock would need what has just failed"),
    ("[journal]\nread = [\"verify\"]\nwrite = [\"verify\"]", 2, "would need what has just failed"),
    ("[maps]\nread = [\"mirror\"]\nwrite = [\"mirror far\"]", 2, "would need what has just failed"),
    ("[maps]\nread = [\"remount\"]", 2, "would need what has just failed"),
];

#[test]
fn what_cannot_be_is_refused_with_its_line() {
    for (text, line, words) in REFUSED {
        let refused = Policy::parse(text).unwrap_err();
        assert_eq!(refused.line, *line, "{text}: {refused}");
        assert!(refused.to_string().contains(words), "{text}: {refused}");
    }
}

#[test]
fn volumes_must_have_the_disks() {
    let text = "[all]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk 2\"]";
    let policy = Policy::parse(text).unwrap();
    let refused = policy.check_volume(text, &VolumeFacts { disks: 2 }).unwrap_err();
    assert_eq!(refused.line, 3);
    assert!(refused.to_string().contains("asks for 3 disks; the volume is on 2"), "{refused}");
    policy.check_volume(text, &VolumeFacts { disks: 3 }).unwrap();
    assert_eq!(policy.chain(DATA, Direction::Write).copies(3), 2);
}

#[test]
fn shipped_policies_are_right_and_short() {
    for Shipped { name, text } in SHIPPED {
        let policy = Policy::parse(text).unwrap_or_else(|refused| panic!("{name}: {refused}"));
        assert!(!policy.description.is_empty(), "{name}");
        let most = if *name == "d-graid" { 20 } else { 12 };
        assert!(text.lines().count() <= most, "{name} has {} lines", text.lines().count());
        let disks = if *name == "d-graid" { 2 } else { 1 };
        policy
            .check_volume(text, &VolumeFacts { disks })
            .unwrap_or_else(|refused| panic!("{name}: {refused}"));
    }
    let d_graid = shipped("d-graid").unwrap();
    let policy = Policy::parse(d_graid.text).unwrap();
    assert!(policy.check_volume(d_graid.text, &VolumeFacts { disks: 1 }).is_err());
    assert_eq!(policy.chain(Kind::Block(BlockKind::Directory), Direction::Write).copies(10), 9);
}

proptest! {
    #[test]
    fn no_text_panics(text in "(\\[(all|inode|data|journal)\\]\n|(read|write) = |\\[\"[a-z0-9 -]{0,12}\"\\]\n|.{0,8}){0,8}") {
        let _ = Policy::parse(&text);
    }

    #[test]
    fn steps_are_shown_as_they_are_written(times in 1_u32..100, delay in 0_u64..5000, within in 0_u64..600_000, copies in 1_u8..10, blocks in 2_u8..65) {
        let written = [
            format!("retry {times} {delay}ms within {within}ms"),
            format!("retry {times}"),
            format!("mirror far {copies}"),
            format!("parity {blocks}"),
        ];
        for words in written {
            let step = Step::parse(&words, Direction::Write).unwrap();
            prop_assert_eq!(Step::parse(&step.to_string(), Direction::Write).unwrap(), step);
        }
    }
}
