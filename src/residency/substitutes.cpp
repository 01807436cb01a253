#include "residency/substitutes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "modelfile/escape.h"
#include "modelfile/substitute.h"

namespace millrace::residency {
namespace {

constexpr int kHere = -1;  // file of parts that lie in the substitutes' file

std::string named(const std::string& path) { return modelfile::escape(path); }

Status check_belongs(const std::string& path, const modelfile::Model& file, std::string_view identity) {
  const auto of = file.get_string(modelfile::kSubstituteOf);
  if (!of.ok())
    return error(Code::invalid_argument, "{} is no substitute; make one with `millrace quantize --substitute`",
                 named(path));
  if (*of != identity)
    return error(Code::invalid_argument,
                 "{} is stale: it was made for another model, or this one has changed since; make it anew with "
                 "`millrace quantize --substitute`",
                 named(path));
  return {};
}

/// The part of `file` that stands for one of the model's; the model's own where there is none.
Expected<Part> substitute_part(const std::string& path, const modelfile::Model& model, const modelfile::Model& file,
                               const Part& part) {
  const modelfile::TensorInfo *const from = model.find(part.name), *const to = file.find(part.name);
  if (from == nullptr || to == nullptr || !modelfile::can_be_substituted(*from) || part.cols != from->cols())
    return part;
  if (from->shape != to->shape || !info(to->dtype).computable)
    return error(Code::corrupt,
                 "{} is damaged ({} is not the model's): make it anew with `millrace quantize "
                 "--substitute`",
                 named(path), modelfile::escape(part.name, 80));
  const std::int64_t first_row =
      static_cast<std::int64_t>(part.offset - from->offset) / millrace::row_bytes(from->dtype, part.cols);
  Part copy = part;
  copy.dtype = to->dtype;
  copy.file = kHere;
  copy.offset = to->offset + static_cast<std::uint64_t>(first_row * millrace::row_bytes(to->dtype, part.cols));
  return copy;
}

/// i times the golden ratio: the smallest of any first numbers are spread evenly.
double spread(std::size_t i) {
  const double place = static_cast<double>(i) * 0.6180339887498949;
  return place - std::floor(place);
}

}  // namespace

Expected<std::unique_ptr<Substitutes>> Substitutes::open(const std::string& path, const modelfile::Model& model,
                                                         const UnitTable& units, std::string_view identity) {
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(path, {.skip_vocabulary = true}));
  MR_RETURN_IF_ERROR(check_belongs(path, file, identity));
  if (file.paths().size() != 1) return error(Code::corrupt, "{} is one of several files; make it anew", named(path));
  std::unique_ptr<Substitutes> found(new Substitutes());
  found->path_ = path;
  std::map<DType, std::uint64_t> bytes;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const Unit& unit = units.units()[u];
    if (unit.aside || unit.layer < 0 || (unit.kind != UnitKind::trunk && unit.kind != UnitKind::expert)) continue;
    Unit copy = unit;
    copy.aside = true;
    copy.substitute_of = static_cast<std::int32_t>(u);
    bool smaller = false;
    for (Part& part : copy.parts) {
      MR_ASSIGN_OR_RETURN(part, substitute_part(path, model, file, part));
      if (part.file != kHere) continue;
      smaller = true;
      bytes[part.dtype] += part.bytes();
    }
    if (smaller) found->units_.push_back(std::move(copy));
  }
  if (found->units_.empty()) return error(Code::unsupported, "{} has nothing for this model's layers", named(path));
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  found->dtype_ = std::max_element(bytes.begin(), bytes.end(), less)->first;
  return found;
}

UnitTable Substitutes::beside(const UnitTable& units, std::uint64_t tile_bytes, int file) const {
  UnitTable all;
  for (const Unit& unit : units.units()) all.add(unit);
  for (Unit unit : units_) {
    for (Part& part : unit.parts)
      if (part.file == kHere) part.file = file;
    all.add(std::move(unit));
  }
  all.cut(tile_bytes);
  return all;
}

bool has_substitutes(const UnitTable& units) {
  return !units.units().empty() && units.units().back().substitute_of >= 0;
}

UnitTable without_substitutes(const UnitTable& units, std::uint64_t tile_bytes) {
  UnitTable own;
  for (const Unit& unit : units.units())
    if (unit.substitute_of < 0) own.add(unit);
  own.cut(tile_bytes);
  return own;
}

std::vector<Exchange> exchanges(const UnitTable& units) {
  std::vector<Exchange> trunks, mixtures;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const Unit& unit = units.units()[u];
    if (unit.substitute_of < 0) continue;
    const bool expert = unit.kind == UnitKind::expert;
    std::vector<Exchange>& kind = expert ? mixtures : trunks;
    if (!expert || kind.empty() || kind.back().layer != unit.layer) kind.push_back({unit.layer, {}, {}});
    kind.back().own.push_back(unit.substitute_of);
    kind.back().substitutes.push_back(static_cast<std::int32_t>(u));
  }
  std::vector<Exchange> all;
  for (std::vector<Exchange>* const kind : {&trunks, &mixtures}) {
    std::vector<std::size_t> order(kind->size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [](std::size_t a, std::size_t b) { return spread(a) < spread(b); });
    for (const std::size_t i : order) all.push_back(std::move((*kind)[i]));
  }
  return all;
}

std::vector<std::int32_t> stand_ins(const UnitTable& units, const std::vector<bool>& at_home) {
  std::vector<std::int32_t> used(units.units().size());
  std::iota(used.begin(), used.end(), 0);
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const std::int32_t own = units.units()[u].substitute_of;
    if (own >= 0 && at_home[u]) used[static_cast<std::size_t>(own)] = static_cast<std::int32_t>(u);
  }
  return used;
}

}  // namespace millrace::residency
