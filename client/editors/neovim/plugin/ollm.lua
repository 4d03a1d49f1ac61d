-- Defines `:Ollm`. Everything else is loaded with its first use.

if vim.g.loaded_ollm then
  return
end
vim.g.loaded_ollm = 1

local problem = require("ollm").version_problem()
if problem then
  vim.api.nvim_echo({ { problem, "ErrorMsg" } }, true, {})
  return
end

vim.api.nvim_create_user_command("Ollm", function(command)
  require("ollm.commands").run(command)
end, {
  nargs = "*",
  range = true,
  desc = "Sessions with local language models, kept by ollmd",
  complete = function(lead, line, position)
    return require("ollm.commands").complete(lead, line, position)
  end,
})
