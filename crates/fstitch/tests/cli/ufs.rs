//! UFS volumes, which are read: mounted, copied from, checked; what changes them is refused by name.

use std::fs;

use super::harness::{Mounted, Place, fstitch, needs, run};

#[test]
fn a_volume_of_makefs_is_mounted_copied_from_and_checked() {
    if !needs("makefs") {
        return;
    }
    let place = Place::new();
    fs::create_dir_all(place.at("from/dir")).unwrap();
    fs::write(place.at("from/dir/file"), vec![7_u8; 300_000]).unwrap();
    fs::write(place.at("from/small"), "a few bytes").unwrap();
    std::os::unix::fs::symlink("dir/file", place.at("from/link")).unwrap();
    let (image, from) = (place.text("u.img"), place.text("from"));
    for (version, order) in [(1, "le"), (1, "be"), (2, "le"), (2, "be")] {
        let options = format!("version={version},bsize=8192,fsize=1024");
        run("makefs", ["-t", "ffs", "-B", order, "-o", &options, "-b", "30%", "-f", "30", &image, &from])
            .ok();
        let shown = fstitch(&format!("info {image}")).ok();
        assert!(shown.contains(&format!("ufs{version}, ")), "{shown}");
        assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
        let copied = place.text("copied");
        fstitch(&format!("cp -r {image}:/ {copied}")).ok();
        run("diff", ["-r", "--no-dereference", &from, &copied]).ok();
        fs::remove_dir_all(place.at("copied")).unwrap();
        assert_eq!(fstitch(&format!("cat {image}:/small")).ok(), "a few bytes");
        let refused = fstitch(&format!("cp {from}/small {image}:/new"));
        refused.refused(1, &format!("writing ufs{version} volumes: mount read-only"));
        fstitch(&format!("tune -L x {image}")).refused(1, "changing ufs");
        let before = fs::read(place.at("u.img")).unwrap();
        if let Some(mounted) =
            Mounted::new("-o ro", &image, &place.directory(&format!("mnt-{version}{order}")))
        {
            run("diff", ["-r", "--no-dereference", &from, mounted.path().to_str().unwrap()]).ok();
            assert!(fs::write(mounted.path().join("new"), "x").is_err());
            mounted.end();
        }
        assert!(fs::read(place.at("u.img")).unwrap() == before, "a mount that only reads leaves no trace");
        fs::remove_file(place.at("u.img")).unwrap();
    }
}
