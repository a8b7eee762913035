#!/usr/bin/env bash
# Every proof in its long form. FSTITCH names the program under test.
set -uo pipefail
cd "$(dirname "$0")"
failed=()
for proof in interchange journal journal-stress fsx pjdfstest linux-source memory rewrites loads crash-kill recorded stack pull nbd minix \
    grow models "fsx --bpfs" "pjdfstest --bpfs" bpfs-kill dax lackey mmp boot ufs-readers \
    {fsx,pjdfstest,linux-source,crash-kill}" --ext4 --consistency all" {fsx,pjdfstest,linux-source,crash-kill}" "{--ufs,--waffle}; do
    echo "== $proof"
    read -r -a words <<<"$proof"
    ./"${words[0]}.sh" "${words[@]:1}" || failed+=("$proof")
done
[ ${#failed[@]} -eq 0 ] && echo "PASS all proofs" && exit 0
echo "FAIL ${failed[*]}"
exit 1
