#!/usr/bin/env bash
# Man pages, made by help2man from what the program says of itself: millrace(1), and one for each verb.
# Usage: packaging/make_man.sh PROGRAM FOLDER
set -euo pipefail
program=$(realpath "$1")
mkdir -p "$2"
cd "$2"
rm -f millrace*.1.gz
version=$("$program" --version)
verbs=$("$program" --help | awk '/^[A-Z].*:$/ { verbs = !/^(Options|Usage|Positionals|Examples)/ } verbs && /^  [a-z]/ { sub(",.*", "", $1); print $1 }')
case " $(echo $verbs) " in *" run "*" serve "*) ;; *) echo "make_man: cannot read the verbs in --help" >&2; exit 1 ;; esac
page() {  # NAME SUMMARY COMMAND
  help2man --no-info --no-discard-stderr --help-option=--help-all --section=1 --manual="Millrace" --source="$version" --version-string="$version" \
    --name="$2" "$3" | sed -e "s|$program|millrace|g" -e "s/^millrace \\\\-/$1 \\\\-/" -e "/^\.TH/s/MILLRACE/${1^^}/" | gzip -9n >"$1.1.gz"
}
page millrace "$("$program" --help | head -n 1)" "$program"
for verb in $verbs; do
  page "millrace-$verb" "$("$program" "$verb" --help | head -n 1)" "$program $verb"
done
