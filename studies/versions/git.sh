# What a developer does: git.sh REPOSITORY ROUNDS COUNT no|gc|apart. ROUNDS has a directory for each commit, with
# the files that it changes; the last word says how the repository is tidied up in the end. Dates are fixed, and so
# late that no reflog has expired when `git gc` looks.
set -e
cd "$1"
rounds=$2 count=$3 tidy=$4

change() {
    export GIT_AUTHOR_DATE="$((4000000000 + $1)) +0000" GIT_COMMITTER_DATE="$((4000000000 + $1)) +0000"
    cp -r "$rounds/$1/." .
    git add -A
    git commit -q -m "change $1"
}

half=$((count / 2)) number=0
while [ $number -lt $half ]; do
    change $number
    number=$((number + 1))
done
git checkout -q -b topic HEAD~1
while [ $number -lt $count ]; do
    change $number
    number=$((number + 1))
done
git checkout -q main
git rm -q -r --ignore-unmatch old
git commit -q -m "remove what is old"
git merge -q --no-edit topic
git tag -a -m "a release" release

case $tidy in
no) ;;
gc)
    git gc -q
    change $count
    git repack -q -a -d
    ;;
apart)
    # What `git gc` does, but all that is packed is ordered before anything of it is removed.
    git pack-refs --all --no-prune
    git repack -q -a
    sync .
    git prune-packed -q
    git pack-refs --all --prune
    change $count
    before=$(echo .git/objects/pack/pack-*)
    git repack -q -a
    sync .
    rm -f $before
    git prune-packed -q
    ;;
esac
git branch -q -D topic
