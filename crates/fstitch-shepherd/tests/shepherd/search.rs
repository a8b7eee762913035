//! Heads of maps that are looked for over a disk.
//!
//! What it prevents: maps that are believed because of a head which is not theirs, as one in a file that holds an image.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead};
use fstitch_shepherd::engine::{Reach, heads};

use crate::small::{BLOCK, MOVES, area, block_write, made};

#[test]
fn a_head_is_believed_where_its_own_list_has_it() {
    let disk = made(MOVES);
    let sightings = heads(disk.device(), Reach::Ends, &mut |_, _| {});
    assert_eq!(sightings.len(), 2);
    let mut head = vec![0; BLOCK];
    let block = sightings[0].block();
    disk.read(&mut [BlockRead { block, kind: BlockKind::Data, data: &mut head }]).unwrap();
    // As of a file that holds what the volume was once.
    for elsewhere in [20, 395] {
        disk.write(&[block_write(elsewhere, BlockKind::Data, &head)]).unwrap();
    }
    let device = Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let sightings = heads(disk.device(), Reach::Ends, &mut |_, _| {});
    assert_eq!(sightings.len(), 4);
    for sighting in sightings {
        match sighting.follow(&device) {
            Ok(found) => assert!(area().contains(&sighting.block()) && found.area == area()),
            Err(error) => assert!([20, 395].map(BlockNo).contains(&sighting.block()), "{error}"),
        }
        assert_eq!(sighting.follow(&device).is_ok(), area().contains(&sighting.block()));
    }
}
