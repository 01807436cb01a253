#include "app/cli/squeeze.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.h"

namespace millrace::cli {
namespace {

constexpr double kWidth = 760, kHeight = 400, kLeft = 70, kRight = 690, kTop = 60, kBottom = 330;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out;
}

/// The end of an axis that begins at 0: 1, 2 or 5 times a power of ten.
double nice(double most) {
  if (!(most > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(most)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (most <= factor * power) return factor * power;
  return 10 * power;
}

/// A curve over the steps, with its axis.
struct Curve {
  const char* color;  // a class of the style
  std::string name;
  double SqueezeStep::*value;
  bool bytes = false, at_right = false;
};

class Drawing {
 public:
  Drawing(std::string_view title, std::span<const SqueezeStep> steps) : steps_(steps) {
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "font-family=\"sans-serif\" font-size=\"13\">\n"
        "<style>svg{{background:#fff;color:#222}}text{{fill:currentColor}}.grid{{stroke:currentColor;"
        "stroke-opacity:.15}}.speed{{stroke:#0b6e4f;fill:#0b6e4f}}.missed{{stroke:#b3541e;fill:#b3541e}}"
        "polyline{{fill:none!important;stroke-width:2.5}}text.speed,text.missed{{stroke:none}}"
        "@media(prefers-color-scheme:dark){{svg{{background:#16181d;color:#dde}}.speed{{stroke:#4cc38a;fill:#4cc38a}}"
        ".missed{{stroke:#f0a05a;fill:#f0a05a}}}}</style>\n<title>{2}</title>\n",
        kWidth, kHeight, escaped(title));
    text(kLeft, 24, "start", "", escaped(title));
  }

  void axis() {
    for (const SqueezeStep& step : steps_) {
      line(x(step), kTop, x(step), kBottom);
      text(x(step), kBottom + 20, "middle", "", format_bytes(step.budget_bytes));
    }
    text((kLeft + kRight) / 2, kBottom + 44, "middle", "", "budget");
  }

  void curve(const Curve& curve) {
    double most = 0;
    for (const SqueezeStep& step : steps_) most = std::max(most, step.*curve.value);
    const double end = nice(most);
    const auto y = [&](double value) { return kBottom - (kBottom - kTop) * value / end; };
    for (int quarter = 0; quarter <= 4; ++quarter) {
      const double value = end * quarter / 4;
      if (!curve.at_right) line(kLeft, y(value), kRight, y(value));
      text(curve.at_right ? kRight + 8 : kLeft - 8, y(value) + 4, curve.at_right ? "start" : "end", curve.color,
           curve.bytes ? format_bytes(static_cast<std::uint64_t>(value)) : fmt::format("{:g}", value));
    }
    text(curve.at_right ? kRight : kLeft, 46, curve.at_right ? "end" : "start", curve.color, curve.name);
    std::string points, dots;
    for (const SqueezeStep& step : steps_) {
      points += fmt::format("{:.1f},{:.1f} ", x(step), y(step.*curve.value));
      dots += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n", curve.color, x(step),
                          y(step.*curve.value));
    }
    svg_ += fmt::format("<polyline class=\"{}\" points=\"{}\"/>\n{}", curve.color, points, dots);
  }

  std::string finish() { return std::move(svg_) + "</svg>\n"; }

 private:
  double x(const SqueezeStep& step) const {
    const auto at = [](const SqueezeStep& one) { return std::log2(static_cast<double>(one.budget_bytes)); };
    return kLeft + (kRight - kLeft) * (at(steps_.front()) - at(step)) / (at(steps_.front()) - at(steps_.back()));
  }
  void line(double x1, double y1, double x2, double y2) {
    svg_ +=
        fmt::format("<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x1, y1, x2, y2);
  }
  void text(double x, double y, const char* anchor, const char* color, std::string_view words) {
    svg_ += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", color, x, y,
                        anchor, words);
  }

  const std::span<const SqueezeStep> steps_;
  std::string svg_;
};

}  // namespace

std::uint64_t next_budget(std::uint64_t bytes) {
  return static_cast<std::uint64_t>(static_cast<double>(bytes) / std::sqrt(2.0));
}

std::string draw_squeeze(std::string_view title, std::span<const SqueezeStep> steps) {
  const bool mixed = std::any_of(steps.begin(), steps.end(), [](const SqueezeStep& step) { return step.misses > 0; });
  Drawing drawing(title, steps);
  drawing.axis();
  drawing.curve({"speed", "tokens a second", &SqueezeStep::tokens_per_second});
  if (mixed)
    drawing.curve({"missed", "experts missed a pass", &SqueezeStep::misses, false, true});
  else
    drawing.curve({"missed", "moved a pass", &SqueezeStep::moved_bytes, true, true});
  return drawing.finish();
}

}  // namespace millrace::cli
