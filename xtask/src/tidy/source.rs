//! Rules for Rust sources that need the syntax tree.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Report, SourceFile};

/// Longest function, in lines from its signature to its closing brace.
pub const FUNCTION_LIMIT: usize = 70;

/// Checks one source file.
pub fn check(file: &SourceFile<'_>, report: &mut Report) {
    let tree = match syn::parse_file(file.text) {
        Ok(tree) => tree,
        Err(error) => {
            let line = error.span().start().line;
            report.violations.push(file.violation(line, "syntax", error.to_string()));
            return;
        }
    };
    let mut walk = Walk { file, report, test_depth: usize::from(is_test_file(file)) };
    walk.visit_file(&tree);
}

/// Files that hold nothing but tests, benchmarks or examples.
fn is_test_file(file: &SourceFile<'_>) -> bool {
    file.path
        .components()
        .any(|part| ["tests", "benches", "examples", "tests.rs"].iter().any(|name| part.as_os_str() == *name))
}

/// Crates whose locks are of `fstitch_core::lock`: there each has a rank.
const RANKED: [&str; 2] = ["crates/fstitch-fs/src", "crates/fstitch-patch/src"];
/// Locks that have none.
const UNRANKED: [&str; 3] = ["Mutex", "RwLock", "Condvar"];

/// Whether `tree`, behind `path`, brings in one of the locks of `std::sync`.
fn uses_unranked(tree: &syn::UseTree, path: &mut Vec<String>) -> bool {
    let is_unranked = |path: &[String], name: &syn::Ident| {
        path == ["std", "sync"] && UNRANKED.iter().any(|unranked| name == unranked)
    };
    match tree {
        syn::UseTree::Path(more) => {
            path.push(more.ident.to_string());
            let found = uses_unranked(&more.tree, path);
            path.pop();
            found
        }
        syn::UseTree::Name(name) => is_unranked(path, &name.ident),
        syn::UseTree::Rename(name) => is_unranked(path, &name.ident),
        syn::UseTree::Glob(_) => *path == ["std", "sync"],
        syn::UseTree::Group(group) => group.items.iter().any(|item| uses_unranked(item, path)),
    }
}

struct Walk<'a> {
    file: &'a SourceFile<'a>,
    report: &'a mut Report,
    /// Above 0 inside code that is compiled for tests only.
    test_depth: usize,
}

impl Walk<'_> {
    fn violation(&mut self, span: Span, rule: &'static str, text: impl Into<String>) {
        self.report.violations.push(self.file.violation(span.start().line, rule, text));
    }

    /// A lock without a rank where all have one.
    fn unranked(&mut self, span: Span) {
        if self.test_depth == 0 && RANKED.iter().any(|folder| self.file.path.starts_with(folder)) {
            self.violation(
                span,
                "unranked-lock",
                "take the lock from fstitch_core::lock, where it has a rank",
            );
        }
    }

    fn function(&mut self, name: &syn::Ident, whole: Span) {
        let lines = whole.end().line - whole.start().line + 1;
        if lines > FUNCTION_LIMIT {
            let text = format!("`{name}` has {lines} lines; the limit is {FUNCTION_LIMIT}");
            self.violation(whole, "function-length", text);
        }
    }

    fn attributes(&mut self, attributes: &[syn::Attribute]) {
        for attribute in attributes {
            if attribute.path().is_ident("ignore") {
                self.violation(attribute.span(), "ignored-test", "a test that never runs proves nothing");
            }
        }
    }

    /// Visits `inner`, as test code if `attributes` say so.
    fn within(&mut self, attributes: &[syn::Attribute], inner: impl FnOnce(&mut Self)) {
        let test = usize::from(attributes.iter().any(is_test_only));
        self.attributes(attributes);
        self.test_depth += test;
        inner(self);
        self.test_depth -= test;
    }
}

/// `#[test]` or a `#[cfg(…)]` that requires `test`.
fn is_test_only(attribute: &syn::Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let mut found = false;
    if attribute.path().is_ident("cfg") {
        // A condition that is not a plain list of names is not a test condition, so errors are none here.
        let _ = attribute.parse_nested_meta(|meta| {
            found |= meta.path.is_ident("test");
            if meta.path.is_ident("all") {
                return meta.parse_nested_meta(|inner| {
                    found |= inner.path.is_ident("test");
                    Ok(())
                });
            }
            Ok(())
        });
    }
    found
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(
            &item.sig.ident,
            item.sig.span().join(item.block.span()).unwrap_or_else(|| item.span()),
        );
        self.within(&item.attrs, |walk| visit::visit_item_fn(walk, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(
            &item.sig.ident,
            item.sig.span().join(item.block.span()).unwrap_or_else(|| item.span()),
        );
        self.within(&item.attrs, |walk| visit::visit_impl_item_fn(walk, item));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within(&item.attrs, |walk| visit::visit_item_mod(walk, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.within(&item.attrs, |walk| visit::visit_item_impl(walk, item));
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if self.test_depth == 0 && call.method == "unwrap" && call.args.is_empty() {
            self.violation(
                call.method.span(),
                "unwrap",
                "use `?`, or `expect` with the reason why it cannot fail",
            );
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if uses_unranked(&item.tree, &mut Vec::new()) {
            self.unranked(item.span());
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [.., std, sync, name] = &names[..]
            && (std == "std" && sync == "sync" && UNRANKED.contains(&name.as_str()))
        {
            self.unranked(path.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        for name in [concat!("to", "do"), "unimplemented"] {
            if item.path.is_ident(name) {
                self.violation(
                    item.span(),
                    "unfinished",
                    format!("`{name}!` stands for code that is missing"),
                );
            }
        }
        visit::visit_macro(self, item);
    }
}
