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
for _, file in ipairs({ "text_test", "rpc_test", "chat_test", "commands_test", "files_test", "speed_test" }) do
  for _, test in ipairs(require(file)) do
    local name = file:gsub("_test$", "") .. ": " .. test[1]
    if is_wanted(name) then
      local started = vim.uv.hrtime()
      local is_passed, problem = xpcall(function()
        harness.reset()
        test[2]()
      end, debug.traceback)
      local ms = (vim.uv.hrtime() - started) / 1e6
      if is_passed then
        n_passed = n_passed + 1
        write(("ok    %s (%d ms)"):format(name, ms))
      else
        n_failed = n_failed + 1
        write(("FAIL  %s\n%s\n%s"):format(name, problem, harness.describe()))
      end
    end
  end
end
harness.stop()
write(("%d passed, %d failed"):format(n_passed, n_failed))
os.exit(n_failed == 0 and 0 or 1)
