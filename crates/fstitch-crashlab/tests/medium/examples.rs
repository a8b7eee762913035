//! Histories whose images were worked out by hand. The device holds `aA bB cC`; block 0 is `aA`.

use fstitch_crashlab::medium::{Event, Level};

use crate::past::Past;

/// `docs/medium.md`, section 5: B, flush issued, C acknowledged, flush acknowledged, D under way.
fn worked_example(c_is_fua: bool) -> Past {
    let mut past = Past::new();
    past.written(1, "xX");
    past.written(0, "bB");
    let flush = past.flush();
    past.written(2, "yY");
    let c = if c_is_fua { past.write_fua(0, "cC") } else { past.write(0, "cC") };
    past.ack(c);
    past.flush_acked(flush);
    past.write(0, "dD");
    past
}

#[test]
fn the_worked_example_has_the_images_of_the_text() {
    let past = worked_example(false);
    assert_eq!(past.first_block(Level::M0), "cC dD");
    assert_eq!(past.first_block(Level::M1), "cC dD");
    assert_eq!(past.first_block(Level::M2), "bB cC dD");
    assert_eq!(past.first_block(Level::M3), "bB bC bD cB cC cD dB dC dD");
}

#[test]
fn an_acknowledged_fua_write_is_stable_at_every_level() {
    let past = worked_example(true);
    for level in [Level::M0, Level::M1, Level::M2] {
        assert_eq!(past.first_block(level), "cC dD", "{level}");
    }
    assert_eq!(past.first_block(Level::M3), "cC cD dC dD");
}

#[test]
fn fua_is_not_a_flush() {
    let mut past = Past::new();
    past.written(1, "xX");
    let fua = past.write_fua(0, "yY");
    // Until it is acknowledged it is a write as any other.
    assert_eq!(list(&past, Level::M2), "aAbBcC aAxXcC yYbBcC yYxXcC");
    past.ack(fua);
    assert_eq!(list(&past, Level::M2), "yYbBcC yYxXcC", "the write before it stays volatile");
    assert_eq!(list(&past, Level::M1), "yYxXcC");
    // It ends older versions of its own block, and of no other.
    let mut past = Past::new();
    past.written(0, "xX");
    past.written(1, "xX");
    let fua = past.write_fua(0, "yY");
    past.ack(fua);
    past.written(0, "zZ");
    assert_eq!(list(&past, Level::M2), "yYbBcC yYxXcC zZbBcC zZxXcC");
}

#[test]
fn a_flush_covers_what_was_acknowledged_before_its_issue() {
    let mut past = Past::new();
    past.written(0, "xX");
    let late = past.write(1, "yY");
    let flush = past.flush();
    past.ack(late);
    past.written(2, "zZ");
    assert_eq!(past.images(Level::M2).len(), 8, "a flush that is under way promises nothing");
    past.flush_acked(flush);
    assert_eq!(list(&past, Level::M2), "xXbBcC xXbBzZ xXyYcC xXyYzZ");
    past.flushed();
    for level in Level::ALL {
        assert_eq!(list(&past, level), "xXyYzZ");
    }
}

#[test]
fn of_two_flushes_under_way_each_covers_its_own() {
    let mut past = Past::new();
    past.written(0, "xX");
    let first = past.flush();
    past.written(1, "yY");
    let second = past.flush();
    past.written(2, "zZ");
    past.flush_acked(second);
    assert_eq!(list(&past, Level::M2), "xXyYcC xXyYzZ");
    past.flush_acked(first);
    assert_eq!(list(&past, Level::M2), "xXyYcC xXyYzZ", "the earlier one adds nothing");
}

#[test]
fn every_version_of_a_block_may_be_the_one_that_arrived() {
    let mut past = Past::new();
    for letters in ["pP", "qQ", "rR"] {
        past.written(0, letters);
    }
    past.written(1, "sS");
    assert_eq!(past.first_block(Level::M2), "aA pP qQ rR");
    assert_eq!(past.images(Level::M2).len(), 8);
    assert_eq!(past.images(Level::M3).len(), 64);
    assert_eq!(list(&past, Level::M1), "rRsScC");
    // The same contents again are no other version.
    past.written(0, "pP");
    assert_eq!(past.first_block(Level::M2), "aA pP qQ rR");
    past.flushed();
    assert_eq!(list(&past, Level::M3), "pPsScC");
}

#[test]
fn only_sectors_that_differ_can_tear() {
    let mut past = Past::new();
    past.written(0, "aX");
    assert_eq!(list(&past, Level::M3), "aAbBcC aXbBcC");
    past.written(0, "yX");
    assert_eq!(past.first_block(Level::M2), "aA aX yX");
    assert_eq!(past.first_block(Level::M3), "aA aX yA yX");
}

#[test]
fn in_flight_writes_reorder_at_m1_and_not_at_m0() {
    let mut past = Past::new();
    past.write(0, "xX");
    let second = past.write(1, "yY");
    assert_eq!(list(&past, Level::M0), "aAbBcC xXbBcC xXyYcC");
    assert_eq!(list(&past, Level::M1), "aAbBcC aAyYcC xXbBcC xXyYcC");
    past.ack(second);
    assert_eq!(list(&past, Level::M0), "xXyYcC", "what was issued before it came before it");
    assert_eq!(list(&past, Level::M1), "aAyYcC xXyYcC");
    assert_eq!(past.images(Level::M2).len(), 4);
}

#[test]
fn a_discarded_block_holds_old_contents_or_zeros_until_it_is_written() {
    let mut past = Past::new();
    past.written(0, "xX");
    let discard = past.discard(0, 2);
    past.ack(discard);
    assert_eq!(past.first_block(Level::M2), "00 aA xX");
    assert_eq!(past.first_block(Level::M1), "00 xX");
    past.flushed();
    assert_eq!(list(&past, Level::M2), "0000cC 00bBcC xX00cC xXbBcC", "a device may ignore discards");
    past.written(0, "yY");
    assert_eq!(past.first_block(Level::M2), "00 xX yY");
    past.flushed();
    assert_eq!(list(&past, Level::M2), "yY00cC yYbBcC");
}

#[test]
fn after_a_failed_flush_a_good_one_proves_nothing_about_earlier_writes() {
    let mut past = Past::new();
    past.written(0, "xX");
    let failed = past.flush();
    past.event(Event::FlushFailed(failed));
    past.written(1, "yY");
    past.flushed();
    assert_eq!(list(&past, Level::M2), "aAyYcC xXyYcC");
    past.written(0, "zZ");
    past.flushed();
    assert_eq!(list(&past, Level::M2), "zZyYcC");
}

#[test]
fn a_write_without_acknowledgement_is_never_covered() {
    let mut past = Past::new();
    past.write(0, "xX");
    past.flushed();
    assert_eq!(past.first_block(Level::M2), "aA xX");
    past.flushed();
    assert_eq!(past.first_block(Level::M3), "aA aX xA xX");
}

/// The images in order, with spaces between.
fn list(past: &Past, level: Level) -> String {
    past.images(level).into_iter().collect::<Vec<_>>().join(" ")
}
