-- Runs the tests in this Neovim, of which `OLLM_TESTS` names parts. The script `test` prepares everything.
--
-- Not with `nvim -l`, which has no screen, so that `:redraw` ends it.

local plugin = vim.env.OLLM_PLUGIN
package.path = plugin .. "/tests/?.lua;" .. package.path
vim.opt.runtimepath:prepend(plugin)

local harness = require("harness")
local wanted = vim.split(vim.env.OLLM_TESTS or "", " ", { trimempty = true })

local function is_wanted(name)
  if #wanted == 0 then
    return true
  end
  return vim.iter(wanted):any(function(part)
    return name:find(part, 1, true) ~= nil
  end)
end

local function write(line)
  io.stdout:write(line .. "\n")
  io.stdout:flush()
end

local n_passed, n_failed = 0, 0

--- Runs one test.
local function run(name, test)
  local started = vim.uv.hrtime()
  local is_passed, problem = xpcall(function()
    harness.reset()
    test()
  end, debug.traceback)
  local ms = (vim.uv.hrtime() - started) / 1e6
  if is_passed then
    n_passed = n_passed + 1
    write(("ok    %s (%d ms)"):format(name, ms))
  else
    n_failed = n_failed + 1
    local _, state = pcall(harness.describe)
    write(("FAIL  %s\n%s\n%s"):format(name, problem, state))
  end
end

--- Runs a step that is no test; its error fails the whole and leaves the rest to run.
local function guarded(what, step)
  local is_done, problem = xpcall(step, debug.traceback)
  if not is_done then
    n_failed = n_failed + 1
    write(("FAIL  %s\n%s"):format(what, problem))
  end
end

for _, file in ipairs({ "text_test", "rpc_test", "chat_test", "commands_test", "files_test", "speed_test" }) do
  guarded("the tests of " .. file, function()
    for _, test in ipairs(require(file)) do
      local name = file:gsub("_test$", "") .. ": " .. test[1]
      if is_wanted(name) then
        run(name, test[2])
      end
    end
  end)
end
guarded("the end of the tests", harness.stop)
write(("%d passed, %d failed"):format(n_passed, n_failed))
os.exit(n_failed == 0 and n_passed > 0 and 0 or 1)
