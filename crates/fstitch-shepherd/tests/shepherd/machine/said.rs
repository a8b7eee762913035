//! What a run has looked at, as `cargo xtask soak --shepherd` reads it.

use fstitch_crashlab::Counts;

pub fn say(counts: &Counts) {
    let Counts { workloads, operations, cuts, generated, checked, .. } = counts;
    println!(
        "{workloads} programs, {operations} operations, {cuts} cuts, {generated} states, of which {checked} were recovered and read"
    );
}
