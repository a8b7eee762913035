//! x
use fstitch_core::{MemDevice, RepairMode, RepairOptions, Timestamp};
use fstitch_fs::ext2::check::repair_ext2;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mode = match args[1].as_str() {
        "-n" => RepairMode::No,
        "-p" => RepairMode::Preen,
        _ => RepairMode::Yes,
    };
    let image = std::fs::read(&args[2]).unwrap();
    let device = MemDevice::from_image(1024, image);
    let now = Timestamp { secs: 1_800_000_000, nanos: 0 };
    let start = std::time::Instant::now();
    match repair_ext2(&device, RepairOptions { mode, now }) {
        Ok(report) => {
            println!(
                "found {} left {} mended {} runs {} {:?}",
                report.found.total,
                report.left.total,
                report.mended,
                report.runs,
                start.elapsed()
            );
            for f in report.found.findings.iter().take(12) {
                println!("  {:?} {} {}", f.class, f.code, f.text);
            }
            if mode != RepairMode::No {
                for f in report.left.findings.iter().take(12) {
                    println!("  LEFT {:?} {} {}", f.class, f.code, f.text);
                }
            }
        }
        Err(e) => println!("error {e}"),
    }
    if mode != RepairMode::No {
        std::fs::write(&args[2], device.image()).unwrap();
    }
}
