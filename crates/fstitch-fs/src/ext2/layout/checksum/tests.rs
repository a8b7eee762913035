use super::*;

#[test]
fn the_sums_are_the_known_ones() {
    // The check values of both polynomials for the nine digits, without the final inversion.
    assert_eq!(!crc(u32::MAX, b"123456789"), 0xe306_9283);
    assert_eq!(crc16(u16::MAX, b"123456789"), 0x4b37);
    assert_eq!(crc(crc(7, b"1234"), b"56789"), crc(7, b"123456789"), "in parts");
}

#[test]
fn volumes_without_the_features_have_no_sums() {
    let sums = Sums::of(&[0; 1024], &Features::default());
    assert_eq!(sums, Sums::None);
    assert_eq!(sums.descriptor(0, &[0; 32]), None);
    assert_eq!(sums.inode(1, &[0; 256]), None);
    assert!(is_superblock_right(&[0; 1024]));
    assert_eq!(sums.of_inode(2, 0).directory_leaf(&[0; 1024]), None);
}

#[test]
fn sealing_makes_right_what_one_bit_makes_wrong() {
    let sums = Sums::All(0x1234_5678);
    let mut seed = fstitch_core::Seed::new(9);
    for size in [128, 160, 256, 1024] {
        let mut raw: Vec<u8> = (0..size).map(|_| u8::try_from(seed.below(256)).unwrap()).collect();
        if size > 128 {
            I_EXTRA_ISIZE.put(&mut raw, 32);
        }
        sums.seal_inode(12, &mut raw);
        assert!(sums.is_inode_right(12, &raw) && !sums.is_inode_right(13, &raw));
        for at in (0..size).filter(|&at| at != 0x80 && at != 0x81) {
            raw[at] ^= 4;
            assert!(!sums.is_inode_right(12, &raw), "byte {at} of {size}");
            raw[at] ^= 4;
        }
    }
    let mut raw = [5; 64];
    sums.seal_descriptor(3, &mut raw);
    assert!(sums.is_descriptor_right(3, &raw) && !sums.is_descriptor_right(4, &raw));
    raw[63] ^= 1;
    assert!(!sums.is_descriptor_right(3, &raw));
    let mut raw = vec![1; 1024];
    sums.seal_attributes(77, &mut raw);
    assert!(sums.are_attributes_right(77, &raw) && !sums.are_attributes_right(78, &raw));
}

#[test]
fn no_bytes_make_it_panic() {
    let sums = Sums::All(1).of_inode(12, 3);
    let mut seed = fstitch_core::Seed::new(8);
    for _ in 0..5_000 {
        let raw: Vec<u8> = (0..1024).map(|_| u8::try_from(seed.below(256)).unwrap()).collect();
        for placed in [
            sums.directory_leaf(&raw),
            sums.directory_index(&raw, 8),
            sums.directory_index(&raw, 32),
            sums.extent_node(&raw),
            sums.orphan_block(5, &raw),
        ] {
            let _ = placed.map(|placed| is_placed(&raw, placed));
        }
    }
}
