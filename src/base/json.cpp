#include "base/json.h"

#include <iterator>
#include <memory>
#include <utility>

namespace millrace {
namespace {

using Array = nlohmann::json::array_t;
using OrderedArray = nlohmann::ordered_json::array_t;
using Object = nlohmann::json::object_t;
using OrderedObject = nlohmann::ordered_json::object_t;

nlohmann::json& first(Array& items) { return items.front(); }
nlohmann::json& first(Object& members) { return members.begin()->second; }
nlohmann::ordered_json& first(OrderedArray& items) { return items.front(); }
nlohmann::ordered_json& first(OrderedObject& members) { return members.front().second; }

nlohmann::json& last(Array& items) { return items.back(); }
nlohmann::json& last(Object& members) { return std::prev(members.end())->second; }
nlohmann::ordered_json& last(OrderedArray& items) { return items.back(); }
nlohmann::ordered_json& last(OrderedObject& members) { return members.back().second; }

void remove_last(Array& items) { items.pop_back(); }
void remove_last(Object& members) { members.erase(std::prev(members.end())); }
void remove_last(OrderedArray& items) { items.pop_back(); }
void remove_last(OrderedObject& members) { members.pop_back(); }

/// Calls `what` with the value's items or members. REQUIRES: it has some.
template <typename Json, typename What>
decltype(auto) with_inside(Json& value, What what) {
  if (auto* const items = value.template get_ptr<typename Json::array_t*>(); items != nullptr) return what(*items);
  return what(*value.template get_ptr<typename Json::object_t*>());
}

template <typename Json>
bool holds_values(const Json& value) {
  return value.is_structured() && !value.empty();
}

/// Destroys all values inside, of any depth, without taking memory or stack for each level.
/// INVARIANT: below the top, the first value inside of `now` is the value that `now` was inside of.
template <typename Json>
void empty_out(Json now) {
  const auto first_of = [](Json& value) -> Json& {
    return with_inside(value, [](auto& all) -> Json& { return first(all); });
  };
  const auto last_of = [](Json& value) -> Json& {
    return with_inside(value, [](auto& all) -> Json& { return last(all); });
  };
  const auto remove_last_of = [](Json& value) { with_inside(value, [](auto& all) { remove_last(all); }); };
  for (std::size_t depth = 0;;) {
    const std::size_t links = depth > 0 ? 1 : 0;
    if (!holds_values(now) || now.size() == links) {
      if (depth == 0) return;
      Json above = std::move(first_of(now));
      remove_last_of(now);
      now = std::move(above);
      --depth;
    } else if (Json& place = last_of(now); !holds_values(place)) {
      remove_last_of(now);
    } else {
      // Down: what was first inside goes to the place that becomes free, and the link to its own.
      Json inner = std::move(place);
      Json& inner_first = first_of(inner);
      place = std::move(inner_first);
      inner_first = std::move(now);
      now = std::move(inner);
      ++depth;
    }
  }
}

template <typename Json, typename Inside>
void destroy_inside(Inside* inside) {
  if (inside == nullptr) return;
  while (!inside->empty()) {
    if (holds_values(last(*inside))) empty_out<Json>(std::move(last(*inside)));
    remove_last(*inside);
  }
}

/// As the library made it.
template <typename T>
void give_back(T* made) {
  if (made == nullptr) return;
  std::allocator<T> allocator;
  std::destroy_at(made);
  allocator.deallocate(made, 1);
}

/// `value` is nlohmann's union; its type is private.
template <typename Json, typename Value>
void destroy(Value& value, typename Json::value_t type) {
  using Type = typename Json::value_t;
  if (type == Type::object) {
    destroy_inside<Json>(value.object);
    give_back(value.object);
  } else if (type == Type::array) {
    destroy_inside<Json>(value.array);
    give_back(value.array);
  } else if (type == Type::string) {
    give_back(value.string);
  } else if (type == Type::binary) {
    give_back(value.binary);
  }
}

}  // namespace
}  // namespace millrace

template <>
void nlohmann::json::json_value::destroy(value_t type) {
  millrace::destroy<nlohmann::json>(*this, type);
}

template <>
void nlohmann::ordered_json::json_value::destroy(value_t type) {
  millrace::destroy<nlohmann::ordered_json>(*this, type);
}
