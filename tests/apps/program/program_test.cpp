// The program itself: exit codes, messages and files of real runs, good and bad.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include "pride/registry.h"
#include "support/run_here.h"

namespace pride::app {
namespace {

using namespace test;

TEST(Program, SaysItsVersion) {
  const Outcome outcome = run_program({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out.rfind("pride ", 0), 0U) << outcome.out;
}

TEST(Program, HelpNamesEverySubcommandAndOption) {
  const Outcome help = run_program({"--help"});
  EXPECT_EQ(help.code, 0);
  expect_contains(help.out, {"train", "compare", "sweep", "replay", "tokenize", "generate",
                             "evaluate", "report", "methods", "info", "--version"});
  const Outcome replay = run_program({"replay", "--help"});
  EXPECT_EQ(replay.code, 0);
  for (const std::string& name :
       words("--method --input --output --lr --beta1 --beta2 --eps --weight-decay --no-decay "
             "--seed --method-opt --bucket-coords --non-finite --json")) {
    expect_contains(replay.out, name);
  }
  for (const char* name : {"--workers", "--params", "--method", "--method-opt", "--json"}) {
    expect_contains(run_program({"methods", "--help"}).out, name);
  }
}

// Flags of the examples are flags of the command.
TEST(Program, HelpEndsWithExamples) {
  for (const char* command : {"replay", "methods", "bench", "plan", "info"}) {
    const Outcome help = run_here({command, "--help"});
    const std::size_t at = help.out.find("Examples:\n  pride " + std::string(command));
    ASSERT_NE(at, std::string::npos) << help.out;
    std::istringstream words(help.out.substr(at));
    for (std::string word; words >> word;) {
      const std::string above = help.out.substr(0, at);
      if (!word.starts_with("--") || std::string(command) == "bench") continue;
      expect_contains(above, word);
    }
  }
}

TEST(Program, SuggestsTheNearestWordItKnows) {
  expect_usage({"methods", "--paramz", "10"}, "unknown flag --paramz; did you mean --params?");
  expect_usage({"replay", "--metod=lion"}, "unknown flag --metod; did you mean --method?");
  expect_usage({"methods", "--colour", "red"}, "unknown flag --colour\n");
  expect_usage({"trian"}, "unknown subcommand \"trian\"; did you mean train?\n");
  expect_usage({"bench"}, "bench needs a subcommand: kernels network exchange");
  expect_usage({"bench", "netwrk"}, "unknown subcommand \"netwrk\"; did you mean network?");
}

TEST(Program, RefusesEmptyValues) {
  expect_usage({"replay", "--input", ""}, "--input: must not be empty");
  expect_usage({"methods", "--method", ""}, "--method: must not be empty");
}

// Whoever finds out: the parser, the settings, a method.
TEST(Program, RefusesWrongUsage) {
  expect_usage({}, "subcommand");
  expect_usage({"nothing-like-them"}, "there are replay methods bench plan info train compare ");
  expect_usage({"--colour"}, "Run with --help");
  expect_usage({"methods", "--workers", "0"}, "--workers");
  expect_usage({"methods", "--workers", "65536"}, "--workers");
  expect_usage({"methods", "--params", "1.5"}, "1.5 is not an integer from 1 to");
  expect_usage({"methods", "--method-opt", "tie=zero"}, "--method");
  expect_usage({"methods", "--workers=", "4"}, "--workers=: nothing follows the \"=\"");
  expect_usage({"methods", "--workers", "2", "--workers", "3"},
               "--workers: given more than once\n");
  expect_usage({"info", "extra"}, "extra");
  expect_usage({"replay"}, "--input");
  expect_usage({"methods", "--method", "sgd"}, "unknown method 'sgd'");
  expect_usage({"plan", "--params", "1000"}, "give --params and --backward");
}

TEST(Program, ReportsOutputThatCannotBeWritten) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  const Outcome outcome = run_program({"info"}, " >/dev/full");
  EXPECT_EQ(outcome.code, 1);
  expect_contains(outcome.err, "cannot write to standard output");
}

TEST(Program, EndsQuietlyWhenItsReaderHasGone) {
  // the code that counts is the program's, not that of the pipe's end
  const TempFolder folder;
  const auto code = folder.path() / "code";
  const std::string command = concat("( sleep 0.3; ", quoted(PRIDE_PROGRAM), " info --json 2>",
                                     quoted((folder.path() / "err").string()), "; echo $? >",
                                     quoted(code.string()), " ) | true");
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(bytes_of(code), "0\n");
  EXPECT_EQ(bytes_of(folder.path() / "err"), "");
}

TEST(Program, InfoTellsWhatThisBuildIs) {
  const auto info = json_of(run_program({"info", "--json"}));
  EXPECT_FALSE(info.at("version").get<std::string>().empty());
  EXPECT_FALSE(info.at("compiler").get<std::string>().empty());
  const auto sets = info.at("isa").at("available").get<std::vector<std::string>>();
  const auto active = info.at("isa").at("active").get<std::string>();
  EXPECT_NE(std::find(sets.begin(), sets.end(), active), sets.end());
  EXPECT_EQ(info.at("transports").at("threads"), true);
  EXPECT_EQ(info.at("methods"), method_names());
  const auto& cuda = info.at("cuda");
  EXPECT_EQ(cuda.at("gpus").empty(), cuda.at("driver").is_null());
  EXPECT_TRUE(cuda.at("off").is_null() || cuda.at("off").is_string());
  EXPECT_TRUE(cuda.contains("nvrtc") && cuda.contains("cache") && cuda.contains("unchecked"));
#ifdef PRIDE_HAVE_MPI
  const auto mpi = info.at("transports").at("mpi").get<std::string>();
  EXPECT_FALSE(mpi.empty());
  EXPECT_EQ(mpi.find_first_of(std::string("\0\n", 2)), std::string::npos) << mpi;
#else
  EXPECT_TRUE(info.at("transports").at("mpi").is_null());
#endif
}

// An OpenBLAS that is older than the CPU takes its kernels without AVX: the program starts again.
TEST(Program, TakesKernelsOfThisCpu) {
#ifdef __x86_64__
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "no AVX2";
#else
  GTEST_SKIP() << "not on this kind of CPU";
#endif
  const auto blas = [](const std::string& environment) {
    return json_of(run_shell(environment + command_of({"info", "--json"}))).at("blas").dump();
  };
  const std::string chosen = blas("env -u OPENBLAS_CORETYPE ");
  if (chosen.find("OpenBLAS") == std::string::npos) GTEST_SKIP() << "no OpenBLAS: " << chosen;
  EXPECT_EQ(chosen.find("core Prescott"), std::string::npos) << chosen;
  expect_contains(blas("OPENBLAS_CORETYPE=Prescott "), "core Prescott");
}

TEST(Program, InfoTellsWhyThereIsNoGpuPath) {
  const std::string environment = "PRIDE_CUDA_DRIVER=/nowhere/libcuda.so PRIDE_CACHE=/kernels ";
  const auto cuda = json_of(run_shell(environment + command_of({"info", "--json"}))).at("cuda");
  EXPECT_EQ(cuda.at("gpus"), nlohmann::json::array());
  EXPECT_TRUE(cuda.at("driver").is_null());
  EXPECT_EQ(cuda.at("cache"), "/kernels");
  const std::string why = "cannot load /nowhere/libcuda.so: ";
  expect_contains(cuda.at("off").get<std::string>(), why);
  const Outcome outcome = run_shell(environment + command_of({"info"}));
  expect_contains(outcome.out, "GPU           none\nCUDA driver   none\n");
  expect_contains(outcome.out, "kernel cache  /kernels\nGPU path      off: " + why);
}

TEST(Program, InfoTellsThePersonTheSame) {
  const Outcome outcome = run_program({"info"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_contains(outcome.out, {"compiler", "instructions", "transports    threads", "coordinator",
                                "BLAS", "methods       adamw "});
}

TEST(Methods, TellWhatACostQueryTells) {
  const auto all =
      json_of(run_program({"methods", "--json", "--workers", "7", "--params", "100000"}));
  EXPECT_EQ(all.at("workers"), 7);
  EXPECT_EQ(all.at("params"), 100000);
  EXPECT_DOUBLE_EQ(all.at("fp32_ring_bytes"), 2.0 * 6 / 7 * 400000);
  const Layout layout({{"w", {100000}}});
  std::vector<std::string> names;
  for (const auto& method : all.at("methods")) {
    names.push_back(method.at("name"));
    const Cost late = largest_cost(names.back(), layout,
                                   {.world = 7, .step = std::int64_t{1} << 40, .mean = true});
    EXPECT_EQ(method.at("bytes_per_step"), late.bytes()) << names.back();
    EXPECT_EQ(method.at("bytes_up"), late.bytes_up) << names.back();
    EXPECT_EQ(method.at("exact"), late.exact) << names.back();
    EXPECT_EQ(method.at("bound"), late.bound) << names.back();
    EXPECT_EQ(method.at("bits_of_these_options"), true) << names.back();
    const Cost first = largest_cost(names.back(), layout, {.world = 7, .mean = true});
    EXPECT_EQ(method.at("bytes_of_first_step"), first.bytes()) << names.back();
    EXPECT_EQ(method.at("bits_down"), method_info(names.back(), 7).bits_down);
    EXPECT_FALSE(method.at("title").get<std::string>().empty());
    EXPECT_FALSE(method.at("source").get<std::string>().empty());
    EXPECT_FALSE(method.at("growth").get<std::string>().empty()) << names.back();
    EXPECT_GT(method.at("phases"), 0);
    EXPECT_GT(method.at("defaults").at("lr"), 0.0);
  }
  EXPECT_EQ(names, method_names());
}

TEST(Methods, StandInATable) {
  const Outcome outcome = run_program({"methods"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_contains(outcome.out, "4 workers, 10,000,000 parameters");
  for (const std::string& name : method_names()) expect_contains(outcome.out, "| " + name + " ");
  expect_contains(outcome.out, "1/31.9");
}

TEST(Methods, AreKnownForAnyWorld) {
  for (const char* workers : {"1", "2", "65535"}) {
    const Outcome outcome = run_program({"methods", "--workers", workers, "--params", "1000"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_contains(outcome.out, concat(workers, " workers"));
  }
}

TEST(Methods, TellOneWithItsOptions) {
  const Outcome hash = run_program({"methods", "--method", "dlion-vote"});
  ASSERT_EQ(hash.code, 0) << hash.err;
  expect_contains(hash.out, {"dlion-vote: Distributed Lion", "source ", "bits  ", "1 up, 1 down",
                             "route     sharded", "state ", "lr=0.0001", "option    tie=hash"});
  const auto bytes = [](const std::string& tie) {
    const Outcome outcome =
        run_program({"methods", "--json", "--method", "dlion-vote", "--method-opt", tie});
    return nlohmann::json::parse(outcome.out)
        .at("methods")
        .at(0)
        .at("bytes_per_step")
        .get<double>();
  };
  EXPECT_NEAR(bytes("tie=zero") / bytes("tie=hash"), 1.5, 0.01);
  const Outcome zero =
      run_program({"methods", "--method", "dlion-vote", "--method-opt", "tie=zero"});
  expect_contains(zero.out, "1 up, 1 down per coordinate and worker with default options");
  EXPECT_EQ(hash.out.find("with default options"), std::string::npos) << hash.out;
  expect_usage({"methods", "--method", "lion", "--method-opt", "tie=zero"}, "no option 'tie'");
  expect_usage({"methods", "--method", "lion", "--method-opt", "dense"}, "must be key=value");
}

TEST(Methods, TellABoundFromAnEstimate) {
  const auto out = [](const std::vector<std::string>& more) {
    return run_program(plus({"methods", "--params", "100000", "--method"}, more)).out;
  };
  expect_contains(out({"dgc"}), "bytes     <= ");
  expect_contains(out({"lion", "--method-opt", "dense=native"}), "bytes     about 6");
  expect_contains(out({"lion"}), "bytes     6");
}

TEST(Methods, TellWhichWorldIsRefused) {
  const std::string refusal = "terngrad refuses more than 32767 workers";
  const auto out = [](const std::vector<std::string>& more) {
    return run_program(plus({"methods", "--params", "1000"}, more)).out;
  };
  expect_contains(out({"--workers", "40000"}), refusal);
  expect_contains(out({"--workers", "40000", "--method", "terngrad"}), refusal);
  EXPECT_EQ(out({"--workers", "32767", "--method", "terngrad"}).find("refuses"), std::string::npos);
}

// The program where none of those are that it may become.
class ProgramAlone : public ::testing::Test {
 protected:
  ProgramAlone() { std::filesystem::copy_file(PRIDE_PROGRAM, alone_); }

  Outcome run(const std::string& arguments) const {
    return run_shell(quoted(alone_.string()) + " " + arguments);
  }
  void expect_needs(const std::string& arguments, const std::string& program) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 1) << arguments;
    expect_contains(outcome.err,
                    {"needs the program " + program, "install the package " + program});
  }

  TempFolder folder_;
  std::filesystem::path alone_ = folder_.path() / "pride";
};

// It loads neither, and all that the library can do runs without them.
TEST_F(ProgramAlone, NeedsNeitherLibtorchNorGrpc) {
  for (const char* library : {"libtorch_cpu", "libgrpc.so"}) {
    EXPECT_EQ(bytes_of(alone_).find(library), std::string::npos) << library;
  }
  for (const char* arguments :
       {"--version", "--help", "--help-all", "manual", "completion", "methods", "info",
        "plan --params 1000000 --backward 50ms --bandwidth 1Gbit --latency 50us --world 4",
        "bench network --workers 1"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << ": " << outcome.err;
  }
  const Outcome unknown = run("trian --steps 1");
  EXPECT_EQ(unknown.code, 2);
  expect_contains(unknown.err, "unknown subcommand \"trian\"; did you mean train?");
}

TEST_F(ProgramAlone, SaysWhichPackageHasTheCommand) {
  for (const char* arguments : {"train --steps 1", "report runs", "bench step", "bench loader"}) {
    expect_needs(arguments, "pride-lab");
  }
  for (const char* arguments : {"serve --dir x", "certs list x"}) {
    expect_needs(arguments, "pride-coordinator");
  }
  expect_contains(run("--help").out, {"(not installed: package pride-lab)",
                                      "(not installed: package pride-coordinator)"});
  EXPECT_EQ(run("serve --help").code, 0);
  const Outcome plan = run("plan");
  EXPECT_EQ(plan.code, 2);
  expect_contains(plan.err, "to measure a model it needs pride-lab");
}

// Beside it, and in libexec/pride beside its folder, as packages install it.
TEST_F(ProgramAlone, RunsTheProgramOfAHouse) {
  const std::string script = "#!/bin/sh\necho house \"$0\" \"$@\"\n";
  for (const char* folder : {".", "libexec/pride"}) {
    const auto bin = folder_.path() / "bin";
    std::filesystem::remove_all(bin);
    std::filesystem::create_directories(bin);
    std::filesystem::copy_file(PRIDE_PROGRAM, bin / "pride");
    const auto home = std::string(folder) == "." ? bin : folder_.path() / folder;
    std::filesystem::create_directories(home);
    folder_.write(std::filesystem::relative(home / "pride-lab", folder_.path()).string(), script);
    std::filesystem::permissions(home / "pride-lab", std::filesystem::perms::owner_all);
    const auto here = [&](const std::string& arguments) {
      return run_shell(quoted((bin / "pride").string()) + " " + arguments).out;
    };
    expect_contains(here("train --task lm 'two words'"), "pride-lab train --task lm two words\n");
    expect_contains(here("bench step --json"), "pride-lab bench step --json\n");
    expect_contains(here("plan --task lm"), "pride-lab plan --task lm\n");
    expect_contains(here("plan --params 1000 --help"), "pride-lab plan");
    EXPECT_EQ(here("methods").find("house"), std::string::npos);
    EXPECT_EQ(here("plan --params 1000 --backward 1s --workers 1").find("house"),
              std::string::npos);
    expect_contains(here("manual"), "pride-lab manual --part\n");
    for (const char* section : {".SH PRIDE TRAIN", ".SH PRIDE PLAN", ".SH PRIDE BENCH STEP"}) {
      EXPECT_EQ(here("manual").find(section), std::string::npos) << section;
    }
    expect_contains(here("--help-all"), "pride-lab --help-all\n");
    EXPECT_EQ(here("methods --help-all").find("house"), std::string::npos);
  }
}

TEST_F(ProgramAlone, SurvivesABrokenHouse) {
  folder_.write("pride-lab", "#!/bin/sh\necho half; exit 2\n");
  const auto lab = folder_.path() / "pride-lab";
  std::filesystem::permissions(lab, std::filesystem::perms::owner_all);
  const Outcome info = run("info --json");
  EXPECT_TRUE(json_of(info).at("libtorch").is_null());
  expect_contains(info.err, "pride-lab facts failed");
  EXPECT_EQ(run("manual").code, 1) << "it lacks commands";
  std::filesystem::remove(lab);
  std::filesystem::create_directory(lab);
  expect_needs("train --steps 1", "pride-lab");
}

}  // namespace
}  // namespace pride::app
