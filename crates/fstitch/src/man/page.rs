//! The manual page of a command.

use anyhow::Result;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::examples;
use crate::mount::{OPTIONS_HELP, option_terms};

/// How a page begins. It has no date: pages of the same sources are the same whenever they are made.
pub fn title(name: &str, section: u8) -> String {
    format!(".TH {name} {section} \"\" \"fstitch {}\" Featherstitch\n", env!("CARGO_PKG_VERSION"))
}

/// Where a text behind the options says how the command ends.
const EXIT_CODES: &str = "Exit codes: ";

/// The pages of `program` and all commands below it that are not hidden, each with the name of its file.
pub fn all(program: &Command) -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    collect(program, &mut Vec::new(), &mut pages)?;
    Ok(pages)
}

fn collect(command: &Command, words: &mut Vec<String>, pages: &mut Vec<(String, String)>) -> Result<()> {
    pages.push(of(command, words)?);
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
    {
        words.push(below.get_name().to_owned());
        collect(below, words, pages)?;
        words.pop();
    }
    Ok(())
}

/// The page of the command that `words` call, with the name of its file.
pub fn of(command: &Command, words: &[String]) -> Result<(String, String)> {
    let page = Man::new(command.clone());
    let name = page.get_filename();
    let mut out = title(name.trim_end_matches(".1"), 1).into_bytes();
    page.render_name_section(&mut out)?;
    page.render_synopsis_section(&mut out)?;
    page.render_description_section(&mut out)?;
    page.render_options_section(&mut out)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        page.render_subcommands_section(&mut out)?;
    }
    let mut rest = Roff::new();
    behind_options(&mut rest, command, words);
    rest.to_writer(&mut out)?;
    // What stands between an option and its values there, formatters complain about.
    Ok((name, String::from_utf8_lossy(&out).replace(".br\n\n.br\n", ".sp\n")))
}

/// The sections behind the options.
fn behind_options(roff: &mut Roff, command: &Command, words: &[String]) {
    let path = words.join(" ");
    let after = command.get_after_long_help().or_else(|| command.get_after_help());
    let after = after.map(ToString::to_string).unwrap_or_default();
    let mut notes: Vec<&str> = after.split("\n\n").filter(|part| !part.is_empty()).collect();
    if after == OPTIONS_HELP {
        mount_options(roff);
        notes.remove(0);
    }
    let (exits, notes): (Vec<&str>, Vec<&str>) = notes.iter().partition(|part| part.starts_with(EXIT_CODES));
    paragraphs(roff, "NOTES", &notes);
    exit_status(roff, &path, exits.first().copied());
    examples(roff, &path);
    see_also(roff, command, words);
}

/// The words of `-o`, one by one.
pub fn mount_options(roff: &mut Roff) {
    roff.control("SH", ["MOUNT OPTIONS"]);
    for (term, about) in option_terms() {
        roff.control("TP", []);
        roff.text([bold(term)]);
        roff.text([roman(about)]);
    }
}

/// A section of paragraphs, unless there are none.
pub fn paragraphs(roff: &mut Roff, heading: &str, parts: &[&str]) {
    for (index, part) in parts.iter().enumerate() {
        match index {
            0 => roff.control("SH", [heading]),
            _ => roff.control("PP", []),
        };
        for line in part.lines() {
            roff.text([roman(line.trim_start())]);
        }
    }
}

/// A list of what something is and what it means.
pub fn list(roff: &mut Roff, heading: &str, items: &[(&str, &str)]) {
    roff.control("SH", [heading]);
    for (what, about) in items {
        roff.control("TP", []);
        roff.text([bold(*what)]);
        roff.text([roman(*about)]);
    }
}

fn exit_status(roff: &mut Roff, path: &str, said: Option<&str>) {
    let said = said.and_then(|said| said.strip_prefix(EXIT_CODES));
    match (said, path) {
        (Some(said), _) => paragraphs(roff, "EXIT STATUS", &[said]),
        (None, "order" | "depend") => list(
            roff,
            "EXIT STATUS",
            &[
                ("that of the program", "or 128 and the number of the signal that ended it"),
                ("1", "failure: the reason is on standard error"),
                ("2", "wrong usage"),
            ],
        ),
        (None, "") => list(
            roff,
            "EXIT STATUS",
            &[
                ("0", "success"),
                ("1", "failure: the reason is on standard error"),
                ("2", "wrong usage"),
                ("others", "fsck has those of fsck(8), the mount helper those of mount(8)"),
            ],
        ),
        (None, _) => list(
            roff,
            "EXIT STATUS",
            &[("0", "success"), ("1", "failure, or a bad answer: the reason is shown"), ("2", "wrong usage")],
        ),
    }
}

/// Each with a line that says what it is for.
fn examples(roff: &mut Roff, path: &str) {
    let mut found = examples::of(path).peekable();
    if found.peek().is_none() {
        return;
    }
    roff.control("SH", ["EXAMPLES"]);
    for (line, about) in found {
        roff.control("TP", []);
        roff.text([bold(line)]);
        roff.text([roman(about)]);
    }
}

fn see_also(roff: &mut Roff, command: &Command, words: &[String]) {
    let mut pages: Vec<String> = examples::related(&words.join(" ")).map(str::to_owned).collect();
    if !words.is_empty() {
        let above = &words[..words.len() - 1];
        let above: String = above.iter().map(|word| format!("-{word}")).collect();
        pages.insert(0, format!("fstitch{above}(1)"));
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let below = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    pages.extend(below.map(|below| format!("{name}-{}(1)", below.get_name())));
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages.join(", "))]);
}
