// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/recipe.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "cpd/spec/accumulator.h"
#include "cpd/spec/format_names.h"
#include "cpd/spec/keys.h"
#include "cpd/spec/names.h"
#include "cpd/spec/options.h"

namespace cpd {
namespace {

using Sum = Recipe::Sum;
using Cast = Recipe::Cast;
using OwnCast = Recipe::OwnCast;

template <class Value>
struct Field {
  std::string_view name;
  Value Recipe::* value;
  std::optional<Purpose> purpose{};  ///< the purpose of the rounding of a GEMM's operand or result
};
/// A recipe's field for the cast of an operand of one backward GEMM. If the field is not set, the
/// tensor's cast in the field `usual` (activation, weight or gradient) applies.
struct OwnField : Field<OwnCast> {
  Field<Cast> usual;
};

constexpr std::array<std::string_view, 3> kPlaces{"operand", "block", "epilogue"};
constexpr std::array<Field<Sum>, 4> kSumFields{
    {{"forward", &Recipe::forward, Purpose::given},
     {"grad_input", &Recipe::grad_input, Purpose::grad_input},
     {"grad_weight", &Recipe::grad_weight, Purpose::grad_weight},
     {"grad_bias", &Recipe::grad_bias, Purpose::grad_bias}}};
constexpr Field<Cast> kActivation{"activation", &Recipe::activation, Purpose::cast_activation};
constexpr Field<Cast> kWeight{"weight", &Recipe::weight, Purpose::cast_weight};
constexpr Field<Cast> kGradient{"gradient", &Recipe::gradient};
constexpr std::array<Field<Cast>, 3> kCastFields{kActivation, kWeight, kGradient};
constexpr std::array<OwnField, 4> kOwnFields{
    {{{"grad_input_gradient", &Recipe::grad_input_gradient, Purpose::cast_gradient}, kGradient},
     {{"grad_input_weight", &Recipe::grad_input_weight, Purpose::recast_weight}, kWeight},
     {{"grad_weight_activation", &Recipe::grad_weight_activation, Purpose::recast_activation},
      kActivation},
     {{"grad_weight_gradient", &Recipe::grad_weight_gradient, Purpose::recast_gradient},
      kGradient}}};
constexpr std::array<Field<Cast>, 5> kResultFields{
    {{"output", &Recipe::output, Purpose::cast_output},
     {"norm", &Recipe::norm},
     {"softmax", &Recipe::softmax},
     {"embedding", &Recipe::embedding},
     {"residual", &Recipe::residual}}};

// ---- texts ----------------------------------------------------------------------------------

std::string TextOf(const Sum& sum) { return sum ? ToString(*sum) : "native"; }
std::string TextOf(const Cast& cast) { return cast ? Unambiguous(ToString(*cast)) : "none"; }
std::string TextOf(const OwnCast& cast) { return cast ? TextOf(*cast) : "same"; }

void ReadValue(Sum& sum, std::string_view text) {
  sum.reset();
  if (text != "native") sum = ParseAccumulator(text);
}

/// Reads a cast of a recipe. Throws Error for the ambiguous name `e4m3` without a suffix.
CastSpec ParseCast(std::string_view text) {
  const auto words = WordsOf(text);
  if (!words.empty() && Lower(words[0]) == "e4m3") throw Error(std::string(kE4m3IsAmbiguous));
  return ParseCastSpec(text);
}

void ReadValue(Cast& cast, std::string_view text) {
  cast.reset();
  if (text != "none") cast = ParseCast(text);
}

void ReadValue(OwnCast& cast, std::string_view text) {
  cast.reset();
  if (text != "same") ReadValue(cast.emplace(), text);
}

std::string_view Trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

/// Returns a text of version 0.7 in the present form. In version 0.7, the forward sum and each
/// option were followed by semicolons.
std::string WithoutSemicolons(std::string_view text) {
  std::string written = "native";
  for (bool first = true; !text.empty(); first = false) {
    const std::string_view part = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const std::string_view said = Trimmed(part);
    const std::size_t equals = first ? std::string_view::npos : said.find('=');
    if (equals != std::string_view::npos) {
      written += Written(Trimmed(said.substr(0, equals)), Trimmed(said.substr(equals + 1)));
    } else if (!said.empty() && said != "native") {
      written += Written("sums", said);
    }
  }
  return written;
}

// ---- keys -----------------------------------------------------------------------------------

template <const auto& fields, std::size_t i>
void SetField(Recipe& recipe, std::string_view text) {
  try {
    ReadValue(recipe.*fields[i].value, text);
  } catch (const Error& error) {
    throw Error(std::string(fields[i].name) + ": " + error.what());
  }
}

/// Sets the forward sum. The forward sum determines the default of the bias's sum.
void SetForward(Recipe& recipe, std::string_view text) {
  SetField<kSumFields, 0>(recipe, text);
  recipe.grad_bias.reset();
  if (recipe.forward) recipe.grad_bias.emplace();
}

void SetSums(Recipe& recipe, std::string_view text) {
  SetForward(recipe, text);
  recipe.grad_input = recipe.grad_weight = recipe.forward;
}

template <const auto& fields, std::size_t... i>
constexpr void AddRows(Key<Recipe>*& row, std::string_view kind, std::index_sequence<i...> /*of*/) {
  const auto get = []<std::size_t n>() {
    return [](const Recipe& recipe) { return FieldOf(TextOf(recipe.*fields[n].value)); };
  };
  ((*row++ = {fields[i].name, kind, &SetField<fields, i>, get.template operator()<i>()}), ...);
}
template <const auto& fields>
constexpr void AddRows(Key<Recipe>*& row, std::string_view kind) {
  AddRows<fields>(row, kind, std::make_index_sequence<fields.size()>());
}

constexpr auto kRecipeKeys = [] {
  std::array<Key<Recipe>, 18> keys{};
  Key<Recipe>* row = keys.data();
  *row++ = {"sums", "sums", &SetSums, [](const Recipe& r) { return FieldOf(TextOf(r.forward)); }};
  AddRows<kSumFields>(row, "sum");
  keys[1].set = &SetForward;
  AddRows<kCastFields>(row, "operand");
  AddRows<kOwnFields>(row, "override");
  AddRows<kResultFields>(row, "result");
  *row = KeyOf<"scales_at", &Recipe::scales_at>();
  return keys;
}();

// ---- checks ---------------------------------------------------------------------------------

/// Returns the cast of an operand of one backward GEMM.
const Cast& Resolved(const Recipe& recipe, const OwnField& field) {
  const OwnCast& own = recipe.*field.value;
  return own ? *own : recipe.*field.usual.value;
}

const CastSpec* AsScaled(const Cast& cast) {
  return cast && cast->scaled() != nullptr ? &*cast : nullptr;
}

/// Returns all casts to scaled formats that a recipe has for operands, each with its name.
std::vector<std::pair<std::string_view, const CastSpec*>> ScaledCasts(const Recipe& recipe) {
  std::vector<std::pair<std::string_view, const CastSpec*>> all;
  const auto add = [&](std::string_view name, const Cast& cast) {
    if (const CastSpec* const scaled = AsScaled(cast)) all.emplace_back(name, scaled);
  };
  for (const auto& field : kCastFields) add(field.name, recipe.*field.value);
  for (const OwnField& field : kOwnFields) {
    if (const OwnCast& own = recipe.*field.value) add(field.name, *own);
  }
  return all;
}

/// Returns the default of scales_at for the recipe's sums. For a matrix unit, it follows from the
/// blocks of the operands.
ScalesAt UsualScalesAt(const Recipe& recipe) {
  if (!recipe.forward || !recipe.forward->unit) return ScalesAt::operand;
  const auto casts = ScaledCasts(recipe);
  if (casts.empty()) return ScalesAt::operand;
  const bool whole = std::ranges::all_of(casts, [](const auto& each) {
    const Scaled& to = *each.second->scaled();
    using Kind = BlockShape::Kind;
    return (to.block.kind == Kind::tensor || to.block.kind == Kind::row) && !to.tensor_scale;
  });
  return whole ? ScalesAt::epilogue : ScalesAt::block;
}

void CheckHistories(const Recipe& recipe) {
  const CastSpec* first = nullptr;
  for (const auto& [name, cast] : ScaledCasts(recipe)) {
    if (cast->history == 0) continue;
    if (first == nullptr) first = cast;
    if (cast->history == first->history && cast->amax == first->amax) continue;
    throw Error("a layer keeps one length and use of histories, got " + ToString(*first) + " and " +
                ToString(*cast));
  }
  for (const OwnField& field : kOwnFields) {
    const OwnCast& own = recipe.*field.value;
    const CastSpec* const cast = own ? AsScaled(*own) : nullptr;
    if (cast == nullptr || cast->history == 0) continue;
    if (TextOf(*own) == TextOf(recipe.*field.usual.value)) continue;
    throw Error(std::string(field.name) + ": a history belongs to " +
                std::string(field.usual.name) + " itself, whose cast both GEMMs take");
  }
}

/// Throws Error if a matrix unit for elements of 8 bits or fewer would get values that are already
/// multiplied by their scales.
void CheckUnits(const Recipe& recipe) {
  const auto casts = ScaledCasts(recipe);
  if (casts.empty()) return;
  for (const auto& field : std::span(kSumFields).first(3)) {
    const Sum& sum = recipe.*field.value;
    if (!sum || !sum->unit || sum->unit->a.bits() > 8) continue;
    throw Error(std::string(field.name) + "=" + TextOf(sum) + " takes elements, and " +
                std::string(casts[0].first) + "=" + ToString(*casts[0].second) +
                " has scales: say scales_at='block' or 'epilogue', where the unit's sums get them");
  }
}

/// Checks a recipe that applies scales to sums. Throws Error if a sum is `native`, or if a cast to
/// a scaled format has a factor.
void CheckScaledSums(const Recipe& recipe) {
  const std::string at = "scales_at='" + ToString(recipe.scales_at) + "' takes ";
  for (const auto& field : std::span(kSumFields).first(3)) {
    if (recipe.*field.value) continue;
    throw Error(at + "accumulators, got " + std::string(field.name) +
                "='native', whose sums torch's kernel does not give");
  }
  for (const auto& [name, cast] : ScaledCasts(recipe)) {
    if (cast->factor != 1) throw Error(at + "no factor, got one in " + std::string(name));
  }
}

}  // namespace

std::span<const std::string_view> NamesOf(ScalesAt /*scales_at*/) { return kPlaces; }

template <>
Keys<Recipe> KeysOf<Recipe>() {
  return {"a recipe", kRecipeKeys};
}

void Check(const Recipe& recipe) {
  for (const auto& field : kSumFields) {
    if (const Sum& sum = recipe.*field.value) Check(*sum);
  }
  for (const auto& [name, cast] : ScaledCasts(recipe)) Check(*cast);
  for (const auto& field : kResultFields) {
    const CastSpec* const cast = AsScaled(recipe.*field.value);
    if (cast == nullptr) continue;
    throw Error(std::string(field.name) + ": must be a format without scales, got " +
                Quoted(ToString(*cast)) + "; the operands of products, activation, weight and " +
                "gradient, take scaled ones too");
  }
  CheckName("scales_at", recipe.scales_at);
  CheckHistories(recipe);
  if (recipe.scales_at == ScalesAt::operand) {
    CheckUnits(recipe);
  } else {
    CheckScaledSums(recipe);
  }
}

std::string ToString(const Recipe& recipe) {
  Check(recipe);
  return "native" + TextOfKeys(KeysOf<Recipe>(), recipe, {.scales_at = UsualScalesAt(recipe)});
}

Recipe ParseRecipe(std::string_view text) {
  if (text.find(';') != std::string_view::npos) {
    throw Error("a recipe's text has no semicolons: write " + Quoted(WithoutSemicolons(text)));
  }
  const std::vector<std::string_view> names = NamesOf(KeysOf<Recipe>());
  std::string head;
  std::vector<std::string> options;
  for (const std::string& word : WordsOf(text)) {
    const std::string name = word.substr(0, word.find('='));
    if (IsOption(word) && std::ranges::find(names, name) != names.end()) {
      options.push_back(word);
      continue;
    }
    if (IsOption(word) && (head == "native" || !Nearest(name, names).empty())) {
      RefuseOption(name, "a recipe", names);
    }
    if (head == "native") {
      throw Error("a recipe's text is a format or native, and options, name=value, got " +
                  Quoted(word));
    }
    head += (head.empty() ? "" : " ") + word;
  }
  if (head.empty() && options.empty()) throw Error("a recipe's text is empty");
  std::vector<Option> given = OptionsOf(options, "a recipe");
  const bool has_sums = ValueOf(given, "sums") != nullptr;
  if (const std::string* const forward = ValueOf(given, "forward"); forward && !has_sums) {
    given.emplace_back("sums", *forward);
  }
  Recipe recipe;
  if (!head.empty() && head != "native") {
    recipe.activation = recipe.weight = recipe.gradient = ParseCast(head);
  }
  SetKeys(KeysOf<Recipe>(), given, recipe);
  if (has_sums && ValueOf(given, "scales_at") == nullptr) {
    recipe.scales_at = UsualScalesAt(recipe);
  }
  Check(recipe);
  return recipe;
}

std::vector<RecipePart> RecipeParts() {
  std::vector<RecipePart> parts;
  for (const auto& field : kSumFields) parts.push_back({*field.purpose, field.name, {}});
  for (const auto& field : kCastFields) {
    if (field.purpose) parts.push_back({*field.purpose, field.name, field.name});
  }
  for (const auto& field : kOwnFields) {
    parts.push_back({*field.purpose, field.name, field.usual.name});
  }
  return parts;
}

std::array<std::string, kPurposes.size()> RoundingsOf(const Recipe& recipe) {
  std::array<std::string, kPurposes.size()> texts;
  const auto put = [&](std::optional<Purpose> purpose, const auto& value) {
    if (purpose && value) texts.at(static_cast<std::size_t>(*purpose)) = TextOf(value);
  };
  for (const auto& field : kSumFields) {
    texts.at(static_cast<std::size_t>(*field.purpose)) = TextOf(recipe.*field.value);
  }
  for (const auto& field : kCastFields) put(field.purpose, recipe.*field.value);
  for (const auto& field : kOwnFields) put(field.purpose, Resolved(recipe, field));
  for (const auto& field : kResultFields) put(field.purpose, recipe.*field.value);
  return texts;
}

bool IsCastOnce(const Recipe& recipe, Purpose cast) {
  if (cast != kActivation.purpose && cast != kWeight.purpose) {
    throw Error("a tensor that enters two GEMMs is cast_activation or cast_weight, got " +
                ToString(cast));
  }
  const auto& again = *std::ranges::find_if(
      kOwnFields, [&](const OwnField& field) { return field.usual.purpose == cast; });
  const Cast& first = recipe.*again.usual.value;
  if (!first || !IsWhole(*first) || TextOf(first) != TextOf(Resolved(recipe, again))) return false;
  const CastSpec* const scaled = AsScaled(first);
  return scaled == nullptr || (scaled->factor == 1 && recipe.scales_at == ScalesAt::operand);
}

Recipe GemmsOf(Recipe recipe, bool activation_is_cast, bool weight_is_cast) {
  for (const auto& field : kResultFields) (recipe.*field.value).reset();
  if (activation_is_cast) {
    recipe.activation.reset();
    recipe.grad_weight_activation.reset();
  }
  if (weight_is_cast) {
    recipe.weight.reset();
    recipe.grad_input_weight.reset();
  }
  return recipe;
}

}  // namespace cpd
