//! Tables that were measured in a run of their own, in an earlier report.

use anyhow::{Context, Result, ensure};

use super::markdown::{self, PAPERS, RACE};
use crate::results::{Results, Table};

/// Whether tables can be put into a page: asked before they are measured, which takes long.
///
/// # Errors
/// If the page is no report.
pub fn takes_tables(page: &str) -> Result<()> {
    [true, false].into_iter().try_for_each(|is_goal| place(page, is_goal).map(drop))
}

/// An earlier report with the tables of these results in the place of those with the same titles, or behind the others of their kind
/// where it has none. Each says on which machine it was measured, because the rest of the page may be of another.
///
/// # Errors
/// If there are no tables, or the page is no report.
pub fn with_tables(page: &str, results: &Results) -> Result<String> {
    ensure!(!results.tables.is_empty(), "no table was measured: there is nothing to put into the report");
    let mut page = page.to_owned();
    for table in &results.tables {
        let (before, rest) = split(&page, table)?;
        let mut section = String::new();
        markdown::table(&mut section, &Table { about: said(table, results), ..table.clone() });
        page = format!("{before}{section}{rest}");
    }
    Ok(page)
}

/// What is before the place of a table, and what is behind it.
fn split<'a>(page: &'a str, table: &Table) -> Result<(&'a str, &'a str)> {
    let head = format!("### {}\n", table.title);
    let mut at = 0;
    let mut begin = None;
    for line in page.split_inclusive('\n') {
        match begin {
            None if line == head => begin = Some(at),
            Some(begin) if line.starts_with("## ") || line.starts_with("### ") => {
                return Ok((&page[..begin], &page[at..]));
            }
            _ => {}
        }
        at += line.len();
    }
    match begin {
        Some(begin) => Ok((&page[..begin], "")),
        None => Ok(page.split_at(place(page, table.is_goal)?)),
    }
}

/// Where a table goes that a page does not have yet: behind the goals, or behind the tables of the papers.
fn place(page: &str, is_goal: bool) -> Result<usize> {
    let section = |begins: &str| page.find(&format!("\n{begins}")).map(|before| before + 1);
    let heading = if is_goal { RACE } else { PAPERS };
    let at = section(heading).with_context(|| {
        format!("no line `{}`: this is no report of `fstitch bench --report`", heading.trim_end())
    })?;
    let behind = at + heading.len();
    Ok(if is_goal {
        at
    } else {
        page[behind..].find("\n## ").map_or(page.len(), |before| behind + before + 1)
    })
}

/// What a table says about itself, and where it was measured.
fn said(table: &Table, results: &Results) -> String {
    let fact = |name: &str| {
        let mut facts = results.machine.facts.iter();
        facts.find(|(known, _)| known == name).map_or("?", |(_, fact)| fact.as_str())
    };
    format!(
        "{} Of a run of its own: {}, Linux {}, scale `{}`.",
        table.about,
        fact("processors"),
        fact("kernel"),
        results.scale
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Machine;

    fn table(title: &str, number: &str) -> Table {
        let strings = |words: [&str; 2]| words.map(str::to_owned).to_vec();
        Table {
            title: title.to_owned(),
            about: "About it.".to_owned(),
            columns: strings(["", "x"]),
            rows: vec![strings(["row", number])],
            ..Table::default()
        }
    }

    fn results(tables: Vec<Table>) -> Results {
        let facts =
            vec![("processors".to_owned(), "2 x slow".to_owned()), ("kernel".to_owned(), "7".to_owned())];
        Results { machine: Machine { facts }, scale: "full".to_owned(), tables, ..Results::default() }
    }

    fn page(tables: &[Table]) -> String {
        let mut page = "# Benchmarks\n\n## Goals\n\n".to_owned();
        tables.iter().filter(|table| table.is_goal).for_each(|table| markdown::table(&mut page, table));
        page.push_str(&format!("{RACE}\n### one\n\nIt is raced.\n\n{PAPERS}\n"));
        tables.iter().filter(|table| !table.is_goal).for_each(|table| markdown::table(&mut page, table));
        page.push_str("## Not measured\n\n- a thing\n");
        page
    }

    #[test]
    fn a_table_takes_the_place_of_its_older_self_and_nothing_else_changes() {
        let old = page(&[table("one table", "1"), table("two", "2"), table("three", "3")]);
        let mut newer = table("two", "22");
        let new = with_tables(&old, &results(vec![newer.clone()])).unwrap();
        newer.about = "About it. Of a run of its own: 2 x slow, Linux 7, scale `full`.".to_owned();
        assert_eq!(new, page(&[table("one table", "1"), newer, table("three", "3")]));
    }

    #[test]
    fn the_last_table_of_a_page_ends_with_the_page() {
        let old = "# Benchmarks\n\n### two\n\nAbout.\n\n|  | x |\n|---|---|\n| row | 2 |\n";
        let new = with_tables(old, &results(vec![table("two", "22")])).unwrap();
        assert!(new.ends_with("| row | 22 |\n\n") && !new.contains("| row | 2 |"), "{new}");
    }

    #[test]
    fn a_table_that_the_page_does_not_have_comes_behind_those_of_its_kind() {
        let goal = Table { is_goal: true, ..table("a goal", "1") };
        let old = [goal, table("one table", "1")];
        for is_goal in [true, false] {
            let mut new = Table { is_goal, ..table("one tab", "2") };
            let put = with_tables(&page(&old), &results(vec![new.clone()])).unwrap();
            new.about = "About it. Of a run of its own: 2 x slow, Linux 7, scale `full`.".to_owned();
            assert_eq!(put, page(&[&old[..], &[new]].concat()));
        }
    }

    #[test]
    fn what_is_no_report_takes_no_table() {
        let error = takes_tables("# Notes\n\nThe race\n").unwrap_err();
        assert!(error.to_string().contains("no report"), "{error}");
        assert!(with_tables("# Notes\n", &results(vec![table("one", "1")])).is_err());
        assert!(with_tables(&page(&[]), &results(vec![])).is_err(), "nothing was measured");
        takes_tables(&page(&[])).unwrap();
    }
}
