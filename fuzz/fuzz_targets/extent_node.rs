//! Any bytes as a node of an extent tree and as a checksummed inode: what is read is written and read again as the same, and a sum that
//! was put is right. `fuzz/README.md` says how to run it.
#![no_main]

use fstitch_core::BlockNo;
use fstitch_fs::ext2::layout::checksum::{Sums, is_placed, place};
use fstitch_fs::ext2::layout::extent::{Expected, Node};
use libfuzzer_sys::fuzz_target;

/// Bytes of a node and of an inode.
const NODE: usize = 1024;
const INODE: usize = 256;

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    let mut node = bytes.to_vec();
    node.resize(NODE, 0);
    let depth = (choice & 1 == 1).then(|| u16::from(choice >> 1 & 7));
    let expected = Expected {
        depth,
        range: (u32::from(choice >> 4) * 100, 1 << 32),
        ..Expected::root(BlockNo(7), 100_000)
    };
    if let Ok(found) = Node::parse(&node, &expected) {
        let mut again = vec![0; NODE];
        found.encode_into(&mut again);
        assert_eq!(Node::parse(&again, &expected).expect("what was read can be read again"), found);
    }
    let sums = Sums::All(0x1234_5678);
    if let Some(sum) = sums.of_inode(12, 34).extent_node(&node) {
        place(&mut node, sum);
        let sum = sums.of_inode(12, 34).extent_node(&node).expect("the header has not changed");
        assert!(is_placed(&node, sum));
    }
    let inode = &mut node[..INODE];
    sums.seal_inode(12, inode);
    assert!(sums.is_inode_right(12, inode) && !sums.is_inode_right(13, inode));
});
