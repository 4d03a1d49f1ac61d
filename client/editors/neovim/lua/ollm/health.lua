--- `:checkhealth ollm`: what works and what does not, from this editor to the model, with commands that help.

local M = {}

--- The longest wait for each reply, in milliseconds.
local CALL_MS = 15000

local function check_editor()
  local problem = require("ollm").version_problem()
  -- Older versions, which are told apart here, have other names for these functions.
  local health = vim.health or require("health")
  if not health.start then
    health = { start = health.report_start, error = health.report_error }
  end
  health.start("Neovim")
  if problem then
    health.error(problem)
    return false
  end
  vim.health.ok("Neovim " .. tostring(vim.version()))
  if pcall(vim.treesitter.language.inspect, "markdown") then
    vim.health.ok("treesitter parses Markdown")
  else
    vim.health.warn("the treesitter parser of Markdown is missing; syntax files highlight chats", ":TSInstall markdown")
  end
  return true
end

local function check_programs()
  local address = require("ollm.address")
  vim.health.start("Programs")
  local ollmctl = address.ollmctl()
  if not ollmctl then
    local advice = "Install ollm, or set the option `ollmctl`: require('ollm').setup{ ollmctl = '/path/to/ollmctl' }"
    return vim.health.error("ollmctl was not found: " .. require("ollm").config.ollmctl, advice)
  end
  local is_run, version = pcall(function()
    return vim.system({ ollmctl, "--version" }, { text = true, timeout = CALL_MS }):wait()
  end)
  if is_run and version.code == 0 then
    vim.health.ok(("%s: %s"):format(ollmctl, vim.trim(version.stdout)))
  else
    vim.health.error(ollmctl .. " cannot be run", "Install ollm again: cargo install --locked --path .")
  end
  local beside = vim.fs.joinpath(vim.fs.dirname(vim.uv.fs_realpath(ollmctl) or ollmctl), "ollmd")
  local ollmd = vim.fn.exepath(vim.env.OLLM_DAEMON or (vim.fn.executable(beside) == 1 and beside) or "ollmd")
  if ollmd ~= "" then
    vim.health.ok("ollmd: " .. ollmd)
  else
    vim.health.error("ollmd was not found beside ollmctl or in PATH", "cargo install --locked --path .")
  end
end

--- Reports an error of the daemon with its hint.
local function report(err)
  local text = require("ollm.text")
  vim.health.error(text.one_line(err.message), err.hint and { text.one_line(err.hint) } or nil)
end

local function check_daemon()
  local address, rpc = require("ollm.address"), require("ollm.rpc")
  vim.health.start("Daemon")
  vim.health.info("home: " .. address.home())
  local err, status = rpc.call_sync("daemon.status", {}, CALL_MS)
  if err then
    report(err)
    return nil
  end
  local hello = rpc.hello() or {}
  vim.health.ok("socket: " .. status.socket)
  local versions = "ollmd %s, protocol %d, schema revision %d"
  vim.health.ok(versions:format(hello.version, hello.protocol, hello.schemaRevision))
  local failure, doctor = rpc.call_sync("daemon.doctor", {}, CALL_MS)
  if failure then
    report(failure)
  end
  local text = require("ollm.text")
  for _, finding in ipairs(doctor and doctor.findings or {}) do
    vim.health.warn(text.one_line(finding.text), finding.hint and { text.one_line(finding.hint) } or nil)
  end
  return status
end

local function check_models()
  local rpc, text = require("ollm.rpc"), require("ollm.text")
  vim.health.start("Models")
  local err, servers = rpc.call_sync("model.servers", {}, CALL_MS)
  if err then
    return report(err)
  end
  for _, server in ipairs(servers.data) do
    local line = ("%s at %s"):format(text.one_line(server.server), text.one_line(server.host))
    if server.ready then
      vim.health.ok(line .. (server.version and ", version " .. text.one_line(server.version) or ""))
    else
      local problem = (server.problems or {})[1] or { text = "does not answer" }
      local advice = problem.hint and { text.one_line(problem.hint) } or nil
      vim.health.warn(line .. ": " .. text.one_line(problem.text), advice)
    end
  end
  local failure, models = rpc.call_sync("model.list", {}, CALL_MS)
  if failure then
    return report(failure)
  end
  local names = vim.tbl_map(function(model)
    return text.one_line(model.model)
  end, models.data)
  if #names == 0 then
    return vim.health.warn("no model yet", models.getSmallModel and { text.one_line(models.getSmallModel) } or nil)
  end
  vim.health.ok(("%s: %s"):format(text.counted(#names, "model"), table.concat(vim.list_slice(names, 1, 10), ", ")))
end

--- Checks everything; starts the daemon if it does not run.
function M.check()
  if not check_editor() then
    return
  end
  check_programs()
  if check_daemon() then
    check_models()
  end
end

return M
