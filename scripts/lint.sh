#!/usr/bin/env bash
# clang-format, include ranks, names of types, documents (links, words, spelling), the fuzzers' seeds and clang-tidy, which also checks who holds which lock;
# every finding is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
echo "Checking format"
git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror || { echo "lint: run 'make format'" >&2; failed=1; }
echo "Checking include ranks"
python3 scripts/check_ranks.py || failed=1
python3 scripts/check_names.py || failed=1
echo "Counting how far the house is from its plan"
python3 scripts/house.py || failed=1
if git grep -nE 'std::(shared_)?mutex|std::condition_variable' -- src tools ':!src/base/mutex.h' ':!src/base/thread_annotations.h'; then
  echo "lint: take Mutex and CondVar of base/mutex.h, whose locks clang checks" >&2
  failed=1
fi
if git grep -nF '#include <nlohmann/json.hpp>' -- '*.h' '*.cpp' ':!src/base/json.h'; then
  echo "lint: include base/json.h, without which JSON is destroyed in another way" >&2
  failed=1
fi
if git grep -n 'directory_iterator' -- src; then
  echo "lint: take for_each_name() of base/os/folder.h; std::filesystem's iterators end the process where memory is short" >&2
  failed=1
fi
echo "Checking links, words and spelling"
python3 scripts/check_links.py || failed=1
python3 scripts/check_words.py || failed=1
# Tests hold mistakes on purpose, and pages of generated words are data.
git ls-files '*.md' '*.h' '*.cpp' '*.cu' '*.cuh' '*.py' '*.go' '*.sh' '*.js' '*.html' '*.cmake' 'CMakeLists.txt' '*/CMakeLists.txt' Makefile include packaging examples \
    ':!tests/*/*.cpp' ':!tests/*/*.py' ':!tools/*/*.py' ':!src/app/web/words-*' ':!docs/pictures/*' | xargs codespell -q 3 -I scripts/spelling.txt || failed=1
echo "Checking the fuzzers' seeds"
python3 fuzz/make_gguf_corpus.py --check || failed=1
echo "Running clang-tidy"
# Again each time: a file that is new since then would go unseen. In a folder of its own: units of many files name none.
cmake --preset lint >/dev/null
scripts/tidy.py build/lint || failed=1
[ "$failed" -eq 0 ] && echo "lint: clean"
exit "$failed"
