# Is the repository in the current directory intact? Nothing may be missing, short or wrong, whether or not it is
# referred to.
set -e
git fsck --strict --full --no-progress --no-dangling 2>&1
git status --porcelain >/dev/null
git log --oneline --all >/dev/null
git rev-parse -q --verify HEAD >/dev/null
