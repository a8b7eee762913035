# What a developer does, while somebody else commits: svn.sh COPY REPOSITORY OTHER ROUNDS COUNT CONFIG. OTHER is the
# other's working copy; ROUNDS has for each round the files that the other changes (N) and those that are changed
# here (mine-N).
set -e
copy=$1 repository=$2 other=$3 rounds=$4 count=$5 config=$6

svn() {
    command svn --config-dir "$config" --non-interactive --username a -q "$@"
}

[ -d "$copy" ] || svn checkout "file://$repository" "$copy"
number=0
while [ $number -lt "$count" ]; do
    cp -r "$rounds/$number/." "$other"
    svn add --force "$other"
    svn commit -m "theirs $number" "$other"
    svn update "$copy"
    cp -r "$rounds/mine-$number/." "$copy"
    svn add --force "$copy/mine"
    svn delete "$copy/mine/old$number"
    svn commit -m "mine $number" "$copy"
    svn update "$other"
    number=$((number + 1))
done
